package volume

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
)

// fieldValue returns the field of pod that path names, as the downward API defines it.
func fieldValue(pod *v1.Pod, path string, in EnvInput) (string, error) {
	if before, key, ok := splitSubscript(path); ok {
		return subscriptValue(pod, path, before, key)
	}
	switch path {
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName", "spec.host":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(in.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(in.HostIPs, ","), nil
	case "status.podIP":
		return first(in.PodIPs), nil
	case "status.podIPs":
		return strings.Join(in.PodIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func subscriptValue(pod *v1.Pod, path, before, key string) (string, error) {
	var values map[string]string
	checked := key
	switch before {
	case "metadata.annotations":
		values, checked = pod.Annotations, strings.ToLower(key)
	case "metadata.labels":
		values = pod.Labels
	default:
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	if errs := validation.IsQualifiedName(checked); len(errs) != 0 {
		return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(errs, ";"))
	}
	return values[key], nil
}

// splitSubscript splits metadata.labels['key'] into metadata.labels and key.
func splitSubscript(path string) (before, key string, ok bool) {
	inner, ok := strings.CutSuffix(path, "']")
	if !ok {
		return path, "", false
	}
	before, key, ok = strings.Cut(inner, "['")
	if !ok || before == "" {
		return path, "", false
	}
	return before, key, true
}

// formatMap writes one line key="value" for each entry, sorted, with no newline at the end.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+"="+strconv.Quote(v))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// resourceValue returns what a resourceFieldRef stands for, rounded up to whole divisors. own is the container that
// asks; a ref that names another container means that one. A limit that is not set is what the pod or the node has.
func resourceValue(ref *v1.ResourceFieldSelector, pod *v1.Pod, own *v1.Container, allocatable v1.ResourceList) (string, error) {
	c := own
	if ref.ContainerName != "" {
		if c = findContainer(pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
	}
	if c == nil {
		return "", errors.New("resourceFieldRef names no container")
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok || !knownDownwardResource(name) {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	var q resource.Quantity
	switch kind {
	case "limits":
		q = effectiveLimit(pod, c, v1.ResourceName(name), allocatable)
	case "requests":
		q = c.Resources.Requests[v1.ResourceName(name)]
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = *resource.NewQuantity(1, resource.DecimalSI)
	}
	if name == string(v1.ResourceCPU) {
		return ceilDiv(q.MilliValue(), divisor.MilliValue()), nil
	}
	return ceilDiv(q.Value(), divisor.Value()), nil
}

func ceilDiv(a, b int64) string {
	return strconv.FormatInt(int64(math.Ceil(float64(a)/float64(b))), 10)
}

func knownDownwardResource(name string) bool {
	switch v1.ResourceName(name) {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(name, v1.ResourceHugePagesPrefix)
}

func effectiveLimit(pod *v1.Pod, c *v1.Container, name v1.ResourceName, allocatable v1.ResourceList) resource.Quantity {
	if q, ok := c.Resources.Limits[name]; ok && !q.IsZero() {
		return q
	}
	if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
		return resource.Quantity{}
	}
	if resourcehelper.IsPodLevelLimitsSet(pod) && resourcehelper.IsSupportedPodLevelResource(name) {
		if q, ok := pod.Spec.Resources.Limits[name]; ok && !q.IsZero() {
			return q
		}
	}
	return allocatable[name]
}

func findContainer(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
