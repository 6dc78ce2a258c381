package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var errNoDefaultMode = errors.New("no defaultMode used, not even the default value for it")

// missingKeyError says that an object lacks a key that a volume asks for.
type missingKeyError string

func (e missingKeyError) Error() string { return string(e) }

// collector gathers the payload of one volume whose content comes from the API.
type collector struct {
	m      *Manager
	pod    *v1.Pod
	get    func(context.Context, objectKey) (*object, error)
	tokens map[string]*token // by volume name and place in the projection; updated
	volume string
	owner  *int64 // the one user of every container, if there is one
	group  *int64 // fsGroup

	out     payload
	refresh time.Time // when the payload ages; zero means never
}

// isDynamic tells whether the content of the volume comes from the API and changes while the pod runs.
func isDynamic(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

func (c *collector) collect(ctx context.Context, v *v1.Volume) error {
	c.out, c.volume = payload{}, v.Name
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return c.object(ctx, configMapKind, s.Name, s.Items, s.DefaultMode, isTrue(s.Optional))
	case v.Secret != nil:
		s := v.Secret
		return c.object(ctx, secretKind, s.SecretName, s.Items, s.DefaultMode, isTrue(s.Optional))
	case v.DownwardAPI != nil:
		return c.downward(v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	}
	if v.Projected.DefaultMode == nil {
		return errNoDefaultMode
	}
	var errs []error
	for i := range v.Projected.Sources {
		errs = append(errs, c.projection(ctx, i, &v.Projected.Sources[i], v.Projected.DefaultMode))
	}
	return joinErrors(errs)
}

func (c *collector) projection(ctx context.Context, i int, s *v1.VolumeProjection, mode *int32) error {
	switch {
	case s.ConfigMap != nil:
		return c.object(ctx, configMapKind, s.ConfigMap.Name, s.ConfigMap.Items, mode, isTrue(s.ConfigMap.Optional))
	case s.Secret != nil:
		return c.object(ctx, secretKind, s.Secret.Name, s.Secret.Items, mode, isTrue(s.Secret.Optional))
	case s.DownwardAPI != nil:
		return c.downward(s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		return c.token(ctx, i, s.ServiceAccountToken, mode)
	case s.ClusterTrustBundle != nil:
		data, err := c.m.trustBundle(ctx, s.ClusterTrustBundle)
		if err == nil {
			c.out[s.ClusterTrustBundle.Path] = file{data: data, mode: c.privateMode(mode), uid: c.owner}
		}
		return err
	case s.PodCertificate != nil:
		return errors.New("podCertificate projections are not supported")
	}
	return nil
}

// privateMode is the mode of a file meant for the containers' own user or group only, when they have one.
func (c *collector) privateMode(mode *int32) os.FileMode {
	if c.owner != nil || c.group != nil {
		return 0o600
	}
	return os.FileMode(*mode)
}

func (c *collector) token(ctx context.Context, i int, s *v1.ServiceAccountTokenProjection, mode *int32) error {
	key := fmt.Sprintf("%s/%d", c.volume, i)
	t, err := c.m.tokenFor(ctx, c.pod, s, c.tokens[key])
	if err != nil {
		return err
	}
	c.tokens[key] = t
	if c.refresh.IsZero() || t.refresh.Before(c.refresh) {
		c.refresh = t.refresh
	}
	c.out[s.Path] = file{data: []byte(t.value), mode: c.privateMode(mode), uid: c.owner}
	return nil
}

// object adds the keys of a ConfigMap or Secret: those that items name, or all.
func (c *collector) object(ctx context.Context, kind objectKind, name string, items []v1.KeyToPath, mode *int32, optional bool) error {
	if mode == nil {
		return errNoDefaultMode
	}
	o, err := c.get(ctx, objectKey{kind: kind, namespace: c.pod.Namespace, name: name})
	if apierrors.IsNotFound(err) && optional {
		o, err = &object{}, nil
	}
	if err != nil {
		return err
	}
	if len(items) == 0 {
		for _, part := range []map[string][]byte{o.binary, o.text} {
			for k, v := range part {
				c.out[k] = file{data: v, mode: os.FileMode(*mode)}
			}
		}
		return nil
	}
	for _, item := range items {
		data, ok := o.key(item.Key)
		switch {
		case !ok && optional:
			continue
		case !ok && kind == secretKind:
			return missingKeyError("references non-existent secret key: " + item.Key)
		case !ok:
			return missingKeyError("configmap references non-existent config key: " + item.Key)
		}
		c.out[item.Path] = file{data: data, mode: itemMode(item.Mode, mode)}
	}
	return nil
}

func itemMode(own, common *int32) os.FileMode {
	if own != nil {
		return os.FileMode(*own)
	}
	return os.FileMode(*common)
}

func (c *collector) downward(items []v1.DownwardAPIVolumeFile, mode *int32) error {
	if mode == nil {
		return errNoDefaultMode
	}
	var errs []error
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = fieldValue(c.pod, item.FieldRef.FieldPath, EnvInput{})
		case item.ResourceFieldRef != nil:
			value, err = resourceValue(item.ResourceFieldRef, c.pod, nil, c.m.cfg.NodeAllocatable())
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.out[item.Path] = file{data: []byte(value), mode: itemMode(item.Mode, mode)}
	}
	return joinErrors(errs)
}

// objectsOf returns the ConfigMaps and Secrets whose content the pod's volumes show.
func objectsOf(pod *v1.Pod) []objectKey {
	seen := map[objectKey]bool{}
	var out []objectKey
	add := func(kind objectKind, name string) {
		key := objectKey{kind: kind, namespace: pod.Namespace, name: name}
		if !seen[key] {
			seen[key] = true
			out = append(out, key)
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.ConfigMap != nil:
			add(configMapKind, v.ConfigMap.Name)
		case v.Secret != nil:
			add(secretKind, v.Secret.SecretName)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil {
					add(configMapKind, s.ConfigMap.Name)
				}
				if s.Secret != nil {
					add(secretKind, s.Secret.Name)
				}
			}
		}
	}
	return out
}

// commonUser returns the user that every container runs as; nil when they differ or one leaves it to its image.
func commonUser(pod *v1.Pod) *int64 {
	var common *int64
	for _, c := range allContainers(pod) {
		var user *int64
		if sc := pod.Spec.SecurityContext; sc != nil {
			user = sc.RunAsUser
		}
		if c.sc != nil && c.sc.RunAsUser != nil {
			user = c.sc.RunAsUser
		}
		if user == nil || (common != nil && *common != *user) {
			return nil
		}
		common = user
	}
	return common
}

// containerView is what init, regular and ephemeral containers share that matters here.
type containerView struct {
	sc      *v1.SecurityContext
	mounts  []v1.VolumeMount
	devices []v1.VolumeDevice
}

func allContainers(pod *v1.Pod) []containerView {
	var out []containerView
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out = append(out, containerView{list[i].SecurityContext, list[i].VolumeMounts, list[i].VolumeDevices})
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		out = append(out, containerView{c.SecurityContext, c.VolumeMounts, c.VolumeDevices})
	}
	return out
}
