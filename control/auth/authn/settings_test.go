package authn

import "testing"

// A faulty configuration is refused with a reason.
func FuzzConfiguration(f *testing.F) {
	head := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	for _, s := range []string{"", "anonymous: {enabled: true, conditions: [{path: /version}]}", "jwt: [{}]",
		"jwt: [{issuer: {url: 'https://a.example.com', audiences: [b]}, claimMappings: {username: {expression: claims.sub}, groups: {claim: g, prefix: ''}, extra: [{key: a.example.com/b, valueExpression: claims.x}]}, claimValidationRules: [{expression: 'claims.exp > 1', message: m}], userValidationRules: [{expression: 'user.username != \"\"'}]}]"} {
		f.Add([]byte(head + s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if config, err := (Settings{ConfigFile: "f"}).parse(data, []string{"https://own.example.com"}); config == nil && err == nil {
			t.Error("neither a configuration nor a reason")
		}
	})
}
