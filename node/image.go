package node

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/volume"
)

const (
	firstPullDelay = 10 * time.Second
	mostPullDelay  = 5 * time.Minute
)

func (w *worker) opImage(a podloop.Action) operation {
	pod, handler := w.pod, w.handler
	c, kind := podloop.FindContainer(pod, a.Container)
	return func(ctx context.Context) func() {
		im, fail := w.ensureImages(ctx, imageInput{pod, c, kind, handler})
		return func() {
			if fail == nil {
				w.o.Images[a.Container] = im
				return
			}
			first, most := firstPullDelay, mostPullDelay
			if fail.Reason != "ErrImagePull" {
				most = firstPullDelay
			}
			w.o.Images[a.Container] = podloop.Image{Retry: w.o.Images[a.Container].Retry.Again(w.o.Now, *fail, first, most)}
		}
	}
}

// imageInput says for which container images are wanted.
type imageInput struct {
	pod       *v1.Pod
	container *v1.Container
	kind      podloop.ContainerKind
	handler   string
}

// ensureImages makes present what a container runs and the images it mounts.
func (w *worker) ensureImages(ctx context.Context, in imageInput) (podloop.Image, *podloop.Failure) {
	im := podloop.Image{Volumes: map[string]string{}}
	for name, v := range imageVolumes(in.pod, in.container) {
		ref, fail := w.ensureImage(ctx, in, v.Reference, v.PullPolicy)
		if fail != nil {
			return podloop.Image{}, fail
		}
		im.Volumes[name] = ref
	}
	ref, fail := w.ensureImage(ctx, in, in.container.Image, in.container.ImagePullPolicy)
	im.Ref = ref
	return im, fail
}

// withImageReferences returns mounts with the runtime's references in place of the names of images.
func withImageReferences(mounts volume.Mounts, im podloop.Image) volume.Mounts {
	if len(im.Volumes) == 0 {
		return mounts
	}
	mounts = maps.Clone(mounts)
	for name, ref := range im.Volumes {
		v := mounts[name]
		v.Image = ref
		mounts[name] = v
	}
	return mounts
}

// imageVolumes are the volumes that c mounts and that are content of images.
func imageVolumes(pod *v1.Pod, c *v1.Container) map[string]*v1.ImageVolumeSource {
	out := map[string]*v1.ImageVolumeSource{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Image != nil && slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == v.Name }) {
			out[v.Name] = v.Image
		}
	}
	return out
}

// ensureImage makes an image present as the policy asks and returns the
// reference to give to the runtime.
func (w *worker) ensureImage(ctx context.Context, in imageInput, name string, policy v1.PullPolicy) (string, *podloop.Failure) {
	pod, c := in.pod, in.container
	say := func(t, reason, format string, args ...any) string {
		m := fmt.Sprintf(format, args...)
		if ctx.Err() == nil {
			w.containerEventOf(pod, c.Name, in.kind, t, reason, m)
		}
		return m
	}
	named, err := withDefaultTag(name)
	if err != nil {
		m := say(v1.EventTypeWarning, "InspectFailed", "Failed to apply default image tag %q: %v", name, err)
		say(v1.EventTypeWarning, "Failed", "Error: InvalidImageName")
		return "", &podloop.Failure{Reason: "InvalidImageName", Message: m}
	}
	spec := &runtimeapi.ImageSpec{Image: named, RuntimeHandler: in.handler}
	if policy != v1.PullAlways {
		have, err := w.a.images.ImageStatus(ctx, spec, false)
		if err != nil {
			m := say(v1.EventTypeWarning, "InspectFailed", "Failed to inspect image %q: %v", name, message(err))
			say(v1.EventTypeWarning, "Failed", "Error: ImageInspectError")
			return "", &podloop.Failure{Reason: "ImageInspectError", Message: m}
		}
		if have.Image != nil {
			say(v1.EventTypeNormal, "Pulled", "Container image %q already present on machine and can be accessed by the pod", name)
			return have.Image.Id, nil
		}
		if policy == v1.PullNever {
			m := say(v1.EventTypeWarning, "ErrImageNeverPull", "Container image %q is not present with pull policy of Never", name)
			say(v1.EventTypeWarning, "Failed", "Error: ErrImageNeverPull")
			return "", &podloop.Failure{Reason: "ErrImageNeverPull", Message: m}
		}
	}
	say(v1.EventTypeNormal, "Pulling", "Pulling image %q", name)
	began := time.Now()
	ref, size, err := w.pull(ctx, pod, spec)
	if err != nil {
		say(v1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", name, message(err))
		say(v1.EventTypeWarning, "Failed", "Error: ErrImagePull")
		return "", &podloop.Failure{Reason: "ErrImagePull", Message: message(err)}
	}
	took := time.Since(began).Truncate(time.Millisecond)
	say(v1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.", name, took, took, size)
	w.a.imagesChanged()
	return ref, nil
}

// pull tries every credential that fits the image, then none.
func (w *worker) pull(ctx context.Context, pod *v1.Pod, spec *runtimeapi.ImageSpec) (ref string, size uint64, err error) {
	creds := w.a.credentials(ctx, pod, spec.Image)
	if len(creds) == 0 {
		creds = []*runtimeapi.AuthConfig{nil}
	}
	box := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)}}
	for _, auth := range creds {
		if ref, err = w.a.images.PullImage(ctx, spec, auth, box); err == nil {
			if r, e := w.a.images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false); e == nil {
				size = r.GetImage().GetSize()
			}
			return ref, size, nil
		}
	}
	return "", 0, err
}

// withDefaultTag adds ":latest" where neither tag nor digest is given.
func withDefaultTag(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	if !reference.IsNameOnly(named) {
		return image, nil
	}
	return image + ":latest", nil
}

// credentials are those of the pod's pull secrets that fit the image, the most
// specific first. A secret that does not exist is passed over.
func (a *Agent) credentials(ctx context.Context, pod *v1.Pod, image string) []*runtimeapi.AuthConfig {
	var all []credential
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := a.cfg.Client.CoreV1().Secrets(pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			a.recorder.Eventf(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
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

// matching picks what fits the image, longest place first.
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

// fits reports whether a credential for where is meant for host/repo.
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

// imageUser asks the runtime which user an image wants.
func (a *Agent) imageUser(ctx context.Context, ref string) (criconfig.ImageUser, error) {
	r, err := a.images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false)
	if err != nil {
		return criconfig.ImageUser{}, err
	}
	if r.Image == nil {
		return criconfig.ImageUser{}, fmt.Errorf("image %q is gone", ref)
	}
	u := criconfig.ImageUser{Name: r.Image.Username}
	if r.Image.Uid != nil {
		uid := r.Image.Uid.Value
		u.UID = &uid
	} else if u.Name == "" {
		root := int64(0)
		u.UID = &root
	}
	return u, nil
}
