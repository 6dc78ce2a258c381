package volume

import (
	"context"
	"errors"
	"fmt"
	"sort"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/staticpod"
)

// EnvInput is what the environment of a container depends on besides the pod's spec.
type EnvInput struct {
	PodIPs  []string // status.podIP, status.podIPs
	HostIPs []string // status.hostIP, status.hostIPs
	Mounts  Mounts   // where fileKeyRef finds its volume
}

// Env returns the environment of a container, each name once: what envFrom and env declare, in that order, then the
// service variables that those do not set. The error's text is what the user reads in a CreateContainerConfigError.
func (m *Manager) Env(ctx context.Context, pod *v1.Pod, c *v1.Container, in EnvInput) ([]*runtimeapi.KeyValue, error) {
	services, err := m.serviceVariables(pod)
	if err != nil {
		return nil, err
	}
	b := &envBuilder{
		m: m, pod: pod, container: c, in: in, services: services,
		declared: newVariables(), fetched: map[objectKey]*object{},
	}
	for i := range c.EnvFrom {
		if err := b.addFrom(ctx, &c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Env {
		if err := b.add(ctx, &c.Env[i]); err != nil {
			return nil, err
		}
	}
	return b.result(), nil
}

func (m *Manager) serviceVariables(pod *v1.Pod) (*variables, error) {
	if m.cfg.Services == nil {
		return newVariables(), nil
	}
	services, err := m.cfg.Services()
	if err != nil && staticpod.Is(pod) {
		return newVariables(), nil // it starts without the API, and then without these variables
	}
	if err != nil {
		return nil, fmt.Errorf("services have not yet been read at least once, cannot construct envvars: %w", err)
	}
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	return serviceVariables(services, pod.Namespace, links), nil
}

// envBuilder collects the environment of one container.
type envBuilder struct {
	m         *Manager
	pod       *v1.Pod
	container *v1.Container
	in        EnvInput
	services  *variables
	declared  *variables
	fetched   map[objectKey]*object // nil for one that is absent
}

// object returns the ConfigMap or Secret; nil without an error when it is absent and optional.
func (b *envBuilder) object(ctx context.Context, kind objectKind, name string, optional bool) (*object, error) {
	key := objectKey{kind: kind, namespace: b.pod.Namespace, name: name}
	o, ok := b.fetched[key]
	if !ok {
		var err error
		if o, err = b.m.objects.get(ctx, key); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		b.fetched[key] = o
	}
	if o == nil && !optional {
		return nil, key.notFound()
	}
	return o, nil
}

func (b *envBuilder) addFrom(ctx context.Context, from *v1.EnvFromSource) error {
	var o *object
	var err error
	switch {
	case from.ConfigMapRef != nil:
		o, err = b.object(ctx, configMapKind, from.ConfigMapRef.Name, isTrue(from.ConfigMapRef.Optional))
	case from.SecretRef != nil:
		o, err = b.object(ctx, secretKind, from.SecretRef.Name, isTrue(from.SecretRef.Optional))
	}
	if err != nil || o == nil {
		return err
	}
	keys := make([]string, 0, len(o.text))
	for k := range o.text {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		b.declared.set(from.Prefix+k, string(o.text[k]))
	}
	return nil
}

func (b *envBuilder) add(ctx context.Context, e *v1.EnvVar) error {
	value, ok := Expand(e.Value, b.lookup), true
	if e.Value == "" && e.ValueFrom != nil {
		var err error
		if value, ok, err = b.valueFrom(ctx, e.ValueFrom); err != nil {
			return err
		}
	}
	if ok {
		b.declared.set(e.Name, value)
	}
	return nil
}

// lookup resolves $(name): a variable declared before wins over one of a Service.
func (b *envBuilder) lookup(name string) (string, bool) {
	if v, ok := b.declared.get(name); ok {
		return v, true
	}
	return b.services.get(name)
}

// valueFrom returns the value of a variable that is taken from elsewhere; false when an optional one is absent.
func (b *envBuilder) valueFrom(ctx context.Context, from *v1.EnvVarSource) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		v, err := fieldValue(b.pod, from.FieldRef.FieldPath, b.in)
		return v, true, err
	case from.ResourceFieldRef != nil:
		v, err := resourceValue(from.ResourceFieldRef, b.pod, b.container, b.m.cfg.NodeAllocatable())
		return v, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		return b.keyOf(ctx, configMapKind, ref.Name, ref.Key, isTrue(ref.Optional))
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		return b.keyOf(ctx, secretKind, ref.Name, ref.Key, isTrue(ref.Optional))
	case from.FileKeyRef != nil:
		return b.fileKey(from.FileKeyRef)
	}
	return "", true, nil
}

func (b *envBuilder) keyOf(ctx context.Context, kind objectKind, name, key string, optional bool) (string, bool, error) {
	o, err := b.object(ctx, kind, name, optional)
	if err != nil || o == nil {
		return "", false, err
	}
	v, ok := o.text[key]
	if !ok && !optional {
		return "", false, fmt.Errorf("couldn't find key %v in %s %v/%v", key, kind.title(), b.pod.Namespace, name)
	}
	return string(v), ok, nil
}

// maxEnvFile bounds the file of a fileKeyRef: the API allows values of 32 KiB.
const maxEnvFile = 64 << 10

func (b *envBuilder) fileKey(ref *v1.FileKeySelector) (string, bool, error) {
	vol, ok := b.in.Mounts[ref.VolumeName]
	if !ok {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	data, err := readBeneath(vol.HostPath, ref.Path, maxEnvFile)
	if err != nil {
		return "", false, errors.New("couldn't parse env file")
	}
	value, err := envFileValue(string(data), ref.Key)
	if err != nil {
		return "", false, fmt.Errorf("couldn't parse env file: %w", err)
	}
	if value == "" {
		if isTrue(ref.Optional) {
			return "", false, nil
		}
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, ref.Path)
	}
	return value, true, nil
}

func (b *envBuilder) result() []*runtimeapi.KeyValue {
	out := make([]*runtimeapi.KeyValue, 0, len(b.declared.names)+len(b.services.names))
	for _, name := range b.declared.names {
		out = append(out, &runtimeapi.KeyValue{Key: name, Value: []byte(b.declared.values[name])})
	}
	for _, name := range b.services.names {
		if _, ok := b.declared.get(name); !ok {
			out = append(out, &runtimeapi.KeyValue{Key: name, Value: []byte(b.services.values[name])})
		}
	}
	return out
}

func isTrue(b *bool) bool { return b != nil && *b }
