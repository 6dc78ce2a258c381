package limits

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// What upstream reads out of a selector must not be more than what was counted, or the bound on conditions would be none.
func FuzzTerms(f *testing.F) {
	for _, s := range []string{"", "a", "a=b,c!=d", "a in (b,c),d notin (e)", "!a,b", "a in (b,),c", ",", "a=b,,", "a>1,b<2", "(a,b)", "a=(,b", `a=b\,c,d=e`, "a=in(,b=c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if selector, err := labels.Parse(s); err == nil {
			if have, _ := selector.Requirements(); len(have) > terms(s, true) {
				t.Errorf("%d conditions on labels, %d counted", len(have), terms(s, true))
			}
		}
		if selector, err := fields.ParseSelector(s); err == nil && len(selector.Requirements()) > terms(s, false) {
			t.Errorf("%d conditions on fields, %d counted", len(selector.Requirements()), terms(s, false))
		}
	})
}
