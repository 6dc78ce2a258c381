package images

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"path"
	"sort"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// credentials returns the credentials of the pod's pull secrets that match the image, the most specific first. A secret that
// cannot be read is left out, with an event.
func (p *Puller) credentials(ctx context.Context, pod *v1.Pod, image string) []*runtimeapi.AuthConfig {
	var all []credential
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := p.Client.CoreV1().Secrets(pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			p.Events.Eventf(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", ref.Name)
			continue
		}
		all = append(all, parseCredentials(s)...)
	}
	return matching(all, image)
}

// credential is one entry of a docker configuration.
type credential struct {
	where string // registry, or registry and a path below it; labels may be globs
	auth  *runtimeapi.AuthConfig
}

type dockerAuth struct {
	Username, Password, Email, Auth, IdentityToken, RegistryToken string
}

// parseCredentials reads a secret of either docker configuration type.
func parseCredentials(s *v1.Secret) []credential {
	entries := map[string]dockerAuth{}
	switch s.Type {
	case v1.SecretTypeDockerConfigJson:
		var cfg struct{ Auths map[string]dockerAuth }
		if json.Unmarshal(s.Data[v1.DockerConfigJsonKey], &cfg) != nil {
			return nil
		}
		entries = cfg.Auths
	case v1.SecretTypeDockercfg:
		if json.Unmarshal(s.Data[v1.DockerConfigKey], &entries) != nil {
			return nil
		}
	}
	var out []credential
	for where, e := range entries {
		if e.Auth != "" && e.Username == "" {
			if b, err := base64.StdEncoding.DecodeString(e.Auth); err == nil {
				e.Username, e.Password, _ = strings.Cut(string(b), ":")
			}
		}
		out = append(out, credential{where, &runtimeapi.AuthConfig{Username: e.Username, Password: e.Password,
			IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}})
	}
	return out
}

// matching returns the credentials that match the image, those with the longest registry path first.
func matching(all []credential, image string) []*runtimeapi.AuthConfig {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil
	}
	sort.SliceStable(all, func(i, j int) bool { return len(all[i].where) > len(all[j].where) })
	var out []*runtimeapi.AuthConfig
	for _, c := range all {
		if fits(c.where, reference.Domain(named), reference.Path(named)) {
			out = append(out, c.auth)
		}
	}
	return out
}

// fits reports whether a credential for the place where matches the image host/repo.
func fits(where, host, repo string) bool {
	where = strings.TrimPrefix(strings.TrimPrefix(where, "https://"), "http://")
	place, prefix, _ := strings.Cut(where, "/")
	prefix = strings.TrimSuffix(prefix, "/")
	if prefix == "v1" || prefix == "v2" {
		prefix = ""
	}
	if host == "docker.io" && (place == "index.docker.io" || place == "registry-1.docker.io") {
		place = host
	}
	p, h := strings.Split(place, "."), strings.Split(host, ".")
	if len(p) != len(h) {
		return false
	}
	for i := range p {
		if ok, err := path.Match(p[i], h[i]); err != nil || !ok {
			return false
		}
	}
	return prefix == "" || repo == prefix || strings.HasPrefix(repo, prefix+"/")
}
