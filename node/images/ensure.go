package images

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
)

// Puller makes images present on the node. It may be used by many goroutines.
type Puller struct {
	Service criapi.ImageManagerService
	Client  kubernetes.Interface // reads pull secrets
	Events  record.EventRecorder // of secrets that cannot be read
	Changed func()               // called after a pull
}

// Request says for which container images are wanted.
type Request struct {
	Pod       *v1.Pod
	Container *v1.Container
	Handler   string // runtime handler, "" for the default
	// Event records an event about the container.
	Event func(kind, reason, message string)
}

// Ensure makes present the image that a container runs and the images that it mounts, and returns the references to give
// to the runtime.
func (p *Puller) Ensure(ctx context.Context, r Request) (podloop.Image, *podloop.Failure) {
	im := podloop.Image{Volumes: map[string]string{}}
	for name, v := range imageVolumes(r.Pod, r.Container) {
		ref, fail := p.ensureImage(ctx, r, v.Reference, v.PullPolicy)
		if fail != nil {
			return podloop.Image{}, fail
		}
		im.Volumes[name] = ref
	}
	ref, fail := p.ensureImage(ctx, r, r.Container.Image, r.Container.ImagePullPolicy)
	im.Ref = ref
	return im, fail
}

// imageVolumes returns the image volumes that c mounts, by volume name.
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

// ensureImage makes an image present by the pull policy and returns the reference to give to the runtime.
func (p *Puller) ensureImage(ctx context.Context, r Request, name string, policy v1.PullPolicy) (string, *podloop.Failure) {
	event := func(t, reason, format string, args ...any) string {
		m := fmt.Sprintf(format, args...)
		if ctx.Err() == nil {
			r.Event(t, reason, m)
		}
		return m
	}
	named, err := withDefaultTag(name)
	if err != nil {
		m := event(v1.EventTypeWarning, "InspectFailed", "Failed to apply default image tag %q: %v", name, err)
		event(v1.EventTypeWarning, "Failed", "Error: InvalidImageName")
		return "", &podloop.Failure{Reason: "InvalidImageName", Message: m}
	}
	spec := &runtimeapi.ImageSpec{Image: named, RuntimeHandler: r.Handler}
	if policy != v1.PullAlways {
		have, err := p.Service.ImageStatus(ctx, spec, false)
		if err != nil {
			m := event(v1.EventTypeWarning, "InspectFailed", "Failed to inspect image %q: %v", name, cri.Message(err))
			event(v1.EventTypeWarning, "Failed", "Error: ImageInspectError")
			return "", &podloop.Failure{Reason: "ImageInspectError", Message: m}
		}
		if have.Image != nil {
			event(v1.EventTypeNormal, "Pulled", "Container image %q already present on machine and can be accessed by the pod", name)
			return have.Image.Id, nil
		}
		if policy == v1.PullNever {
			m := event(v1.EventTypeWarning, "ErrImageNeverPull", "Container image %q is not present with pull policy of Never", name)
			event(v1.EventTypeWarning, "Failed", "Error: ErrImageNeverPull")
			return "", &podloop.Failure{Reason: "ErrImageNeverPull", Message: m}
		}
	}
	event(v1.EventTypeNormal, "Pulling", "Pulling image %q", name)
	began := time.Now()
	ref, size, err := p.pull(ctx, r.Pod, spec)
	if err != nil {
		event(v1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", name, cri.Message(err))
		event(v1.EventTypeWarning, "Failed", "Error: ErrImagePull")
		return "", &podloop.Failure{Reason: "ErrImagePull", Message: cri.Message(err)}
	}
	took := time.Since(began).Truncate(time.Millisecond)
	event(v1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.", name, took, took, size)
	p.Changed()
	return ref, nil
}

// pull pulls an image. It tries each credential that matches the image, or none when no credential does, and returns the
// error of the last try.
func (p *Puller) pull(ctx context.Context, pod *v1.Pod, spec *runtimeapi.ImageSpec) (ref string, size uint64, err error) {
	creds := p.credentials(ctx, pod, spec.Image)
	if len(creds) == 0 {
		creds = []*runtimeapi.AuthConfig{nil}
	}
	box := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)}}
	for _, auth := range creds {
		if ref, err = p.Service.PullImage(ctx, spec, auth, box); err == nil {
			if r, e := p.Service.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false); e == nil {
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

// User returns the user that an image runs as when the pod names none.
func (p *Puller) User(ctx context.Context, ref string) (criconfig.ImageUser, error) {
	r, err := p.Service.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false)
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
