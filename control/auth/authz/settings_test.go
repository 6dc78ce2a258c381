package authz

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiserver/pkg/authorization/cel"
)

// A faulty configuration is refused with a reason.
func FuzzConfiguration(f *testing.F) {
	head := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n"
	for _, s := range []string{"", "authorizers: [{type: Node, name: node}, {type: RBAC, name: rbac}]", "authorizers: [{}]",
		"authorizers: [{type: Webhook, name: w, webhook: {timeout: 3s, authorizedTTL: 1s, unauthorizedTTL: 1s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: /x}, matchConditions: [{expression: 'request.user == \"a\"'}]}}]"} {
		f.Add([]byte(head + s))
	}
	compiler := cel.NewDefaultCompiler()
	f.Fuzz(func(t *testing.T, data []byte) {
		if config, err := (Settings{ConfigFile: "f"}).parse(data, compiler); (config == nil) == (err == nil) {
			t.Errorf("%v, %v", config, err)
		}
	})
}

// A faulty policy file is refused with a reason.
func FuzzPolicies(f *testing.F) {
	for _, s := range []string{"", "# c\n", `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"tom","namespace":"default","resource":"pods","readonly":true}}`, `{"user":"x"}`, "{}\n[]\nnull"} {
		f.Add([]byte(s))
	}
	file := filepath.Join(f.TempDir(), "policies")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = policies(file)
	})
}
