package fields_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/fields"
)

const root = "../.."

// untested is how many rows may name no test. It only shrinks: each new field needs a test that shows what it does.
const untested = 69

// row is one line of the table.
type row struct {
	field                string // package.Definition.field, as OpenAPI calls it
	what, who, test, why string
	at                   string // file
}

func table(t *testing.T) []row {
	t.Helper()
	files, err := filepath.Glob("table/*.tsv")
	if err != nil || len(files) == 0 {
		t.Fatalf("no table: %v", err)
	}
	var out []row
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		group := strings.TrimSuffix(filepath.Base(name), ".tsv")
		for lines := bufio.NewScanner(f); lines.Scan(); {
			c := append(strings.Split(lines.Text(), "\t"), "", "", "", "")
			out = append(out, row{group + "." + c[0], c[1], c[2], c[3], c[4], name})
		}
		f.Close()
	}
	return out
}

// served returns every field of every definition in the OpenAPI document of a running server.
func served(t *testing.T, s *controltest.Server) map[string]bool {
	t.Helper()
	client, err := rest.HTTPClientFor(s.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	code, text := s.Ask(t, client, http.MethodGet, "/openapi/v2", http.Header{"Accept": {"application/json"}}, nil)
	var doc struct {
		Definitions map[string]struct{ Properties map[string]any }
	}
	if err := json.Unmarshal([]byte(text), &doc); code != http.StatusOK || err != nil {
		t.Fatalf("OpenAPI: %d, %v", code, err)
	}
	out := map[string]bool{}
	for name, d := range doc.Definitions {
		for field := range d.Properties {
			out[name+"."+field] = true
		}
	}
	return out
}

// functions returns the tests of each folder.
func functions(t *testing.T) map[string]bool {
	t.Helper()
	out, pattern := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	dirs := map[string]bool{}
	for _, r := range table(t) {
		if i := strings.LastIndex(r.test, "."); i > 0 {
			dirs[r.test[:i]] = true
		}
	}
	for dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
				out[dir+"."+m[1]] = true
			}
		}
	}
	return out
}

// TestTableIsOfWhatIsServed fails if OpenAPI has a field without a row. Add the row to the file of its package, sorted
// by name: what the field does here, which package acts on it, and the test that shows it.
func TestTableIsOfWhatIsServed(t *testing.T) {
	left := served(t, controltest.Start(t))
	total := len(left)
	count, bare := map[string]int{}, 0
	tests := functions(t)
	ruled := map[string]bool{}
	rules := map[string]fields.Verdict{}
	for _, r := range fields.Rules() {
		rules[r.Name()] = r.Does
	}
	rows := table(t)
	if !slices.IsSortedFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.field, b.field)) }) {
		t.Error("rows are not in the order of their names")
	}
	for _, r := range rows {
		if !left[r.field] {
			t.Errorf("%s: %s is not served, or has two rows", r.at, r.field)
		}
		delete(left, r.field)
		count[r.what]++
		switch {
		case r.test == "-":
			bare++
		case !tests[r.test]:
			t.Errorf("%s: %s: there is no test %s", r.at, r.field, r.test)
		}
		switch r.what {
		case "acted", "said", "refused":
			if st, err := os.Stat(filepath.Join(root, r.who)); err != nil || !st.IsDir() {
				t.Errorf("%s: %s: there is no package %q", r.at, r.field, r.who)
			}
		case "stored":
			if r.why == "" {
				t.Errorf("%s: %s is stored, and nobody says for whom", r.at, r.field)
			}
		default:
			t.Errorf("%s: %s: %q is not acted, stored, refused or said", r.at, r.field, r.what)
		}
		if r.who == "control/fields" {
			if rules[r.why] != fields.Verdict(r.what) {
				t.Errorf("%s: %s is %s by rule %q, which is not there or says otherwise", r.at, r.field, r.what, r.why)
			}
			ruled[r.why] = true
		}
	}
	for _, f := range slices.Sorted(maps.Keys(left)) {
		t.Errorf("%s has no row: what does it do here?", f)
	}
	for name := range rules {
		if !ruled[name] {
			t.Errorf("rule %q is named by no row", name)
		}
	}
	if bare > untested {
		t.Errorf("%d rows name no test; %d did", bare, untested)
	}
	t.Logf("%d fields: %v; %d name no test", total, count, bare)
}
