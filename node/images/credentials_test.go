package images

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestPullSecretsFitTheirRegistry(t *testing.T) {
	s := &v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(
		`{"auths":{"https://index.docker.io/v1/":{"auth":"aHViOnB3"},"reg.example/team":{"username":"team","password":"x"},"*.example":{"username":"any"}}}`)}}
	for image, want := range map[string]string{
		"busybox": "hub", "reg.example/team/app:1": "team any", "reg.example/teams/app": "any", "other.org/app": "",
	} {
		var got []string
		for _, a := range matching(parseCredentials(s), image) {
			got = append(got, a.Username)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", image, got, want)
		}
	}
}
