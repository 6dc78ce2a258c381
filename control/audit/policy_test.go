package audit

import (
	"os"
	"path/filepath"
	"testing"
)

// A faulty policy is refused with a reason, and one that is taken can be asked.
func FuzzPolicy(f *testing.F) {
	head := "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for _, s := range []string{"", "rules: [{level: Metadata}]", "rules: [{level: Request, resources: [{group: '', resources: [pods, 'pods/*'], resourceNames: [a]}], verbs: [get], users: [u], namespaces: ['']}]\nomitStages: [RequestReceived]", "rules: [null]", "rules: [{level: None, nonResourceURLs: ['/x*', '*']}]"} {
		f.Add([]byte(head + s))
	}
	s := &Settings{PolicyFile: filepath.Join(f.TempDir(), "policy")}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(s.PolicyFile, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := rules(s); err == nil {
			recordsSecrets(r)
		}
	})
}
