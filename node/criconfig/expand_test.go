package criconfig

import "testing"

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "1"}
	for in, want := range map[string]string{"$(A)b": "1b", "$$(A)": "$(A)", "$(B)": "$(B)", "$A": "$A", "$(A": "$(A", "x$": "x$"} {
		if got := expand(in, env); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
