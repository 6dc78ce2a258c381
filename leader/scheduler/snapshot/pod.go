package snapshot

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// The requests that a container without requests counts with when nodes are scored, so that such pods spread over the nodes. The values
// are upstream's.
const (
	defaultMilliCPU = 100
	defaultMemory   = 200 << 20
)

var assumedRequests = v1.ResourceList{
	v1.ResourceCPU:    *resource.NewMilliQuantity(defaultMilliCPU, resource.DecimalSI),
	v1.ResourceMemory: *resource.NewQuantity(defaultMemory, resource.BinarySI),
}

// HostPort is a port that a pod uses on its node.
type HostPort struct {
	IP       string // "0.0.0.0" is every address
	Protocol v1.Protocol
	Port     int32
}

// Term is one parsed affinity or anti-affinity term.
type Term struct {
	Namespaces        []string
	NamespaceSelector labels.Selector
	Selector          labels.Selector
	TopologyKey       string
}

// Matches reports whether the term selects pod. namespaceLabels are the labels of the pod's namespace.
func (t *Term) Matches(pod *v1.Pod, namespaceLabels labels.Set) bool {
	if !slices.Contains(t.Namespaces, pod.Namespace) && !t.NamespaceSelector.Matches(namespaceLabels) {
		return false
	}
	return t.Selector.Matches(labels.Set(pod.Labels))
}

// WeightedTerm is a preferred term; Weight is negative for anti-affinity.
type WeightedTerm struct {
	Term
	Weight int64
}

// Pod is a pod with the values that the rules use, computed once. It is immutable.
type Pod struct {
	Object   *v1.Pod
	Priority int32
	Request  Resource
	// ScoredMilliCPU and ScoredMemory are the requests, with defaultMilliCPU and defaultMemory for containers without.
	ScoredMilliCPU, ScoredMemory int64
	Ports                        []HostPort
	// Claims are the PersistentVolumeClaims used, as "namespace/name".
	Claims               []string
	RequiredAffinity     []Term
	RequiredAntiAffinity []Term
	// Preferred holds preferred affinity (positive) and anti-affinity (negative) terms.
	Preferred []WeightedTerm
}

// NewPod returns the Pod of a pod object. It returns an error for a selector that does not parse; the API server refuses such pods.
func NewPod(pod *v1.Pod) (*Pod, error) {
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	p := &Pod{
		Object:   pod,
		Priority: corev1.PodPriority(pod),
		Request:  NewResource(resourcehelper.PodRequests(pod, opts)),
		Ports:    hostPorts(pod),
		Claims:   claims(pod),
	}
	opts.NonMissingContainerRequests = assumedRequests
	scored := resourcehelper.PodRequests(pod, opts)
	p.ScoredMilliCPU, p.ScoredMemory = scored.Cpu().MilliValue(), scored.Memory().Value()
	return p, p.parseAffinity()
}

// On returns the pod as it will be once bound to node.
func (p *Pod) On(node string) *Pod {
	object := *p.Object
	object.Spec.NodeName = node
	bound := *p
	bound.Object = &object
	return &bound
}

// HasAffinity reports whether the pod has inter-pod terms, which change other pods' scores.
func (p *Pod) HasAffinity() bool {
	return len(p.RequiredAffinity)+len(p.RequiredAntiAffinity)+len(p.Preferred) > 0
}

func hostPorts(pod *v1.Pod) []HostPort {
	var ports []HostPort
	collect := func(cs []v1.Container, want func(*v1.Container) bool) {
		for i := range cs {
			if !want(&cs[i]) {
				continue
			}
			for _, p := range cs[i].Ports {
				if p.HostPort > 0 {
					ports = append(ports, newHostPort(p))
				}
			}
		}
	}
	collect(pod.Spec.InitContainers, func(c *v1.Container) bool {
		return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
	})
	collect(pod.Spec.Containers, func(*v1.Container) bool { return true })
	return ports
}

func newHostPort(p v1.ContainerPort) HostPort {
	h := HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort}
	if h.IP == "" {
		h.IP = anyAddress
	}
	if h.Protocol == "" {
		h.Protocol = v1.ProtocolTCP
	}
	return h
}

func claims(pod *v1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, pod.Namespace+"/"+v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Namespace+"/"+ephemeral.VolumeClaimName(pod, v))
		}
	}
	return names
}

func (p *Pod) parseAffinity() error {
	a := p.Object.Spec.Affinity
	if a == nil {
		return nil
	}
	var err error
	if pa := a.PodAffinity; pa != nil {
		if p.RequiredAffinity, err = terms(p.Object, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return err
		}
		if err = p.addPreferred(pa.PreferredDuringSchedulingIgnoredDuringExecution, 1); err != nil {
			return err
		}
	}
	if pa := a.PodAntiAffinity; pa != nil {
		if p.RequiredAntiAffinity, err = terms(p.Object, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return err
		}
		return p.addPreferred(pa.PreferredDuringSchedulingIgnoredDuringExecution, -1)
	}
	return nil
}

func (p *Pod) addPreferred(list []v1.WeightedPodAffinityTerm, sign int64) error {
	for i := range list {
		t, err := newTerm(p.Object, &list[i].PodAffinityTerm)
		if err != nil {
			return err
		}
		p.Preferred = append(p.Preferred, WeightedTerm{Term: t, Weight: sign * int64(list[i].Weight)})
	}
	return nil
}

func terms(pod *v1.Pod, list []v1.PodAffinityTerm) ([]Term, error) {
	var out []Term
	for i := range list {
		t, err := newTerm(pod, &list[i])
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func newTerm(pod *v1.Pod, t *v1.PodAffinityTerm) (Term, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return Term{}, err
	}
	nsSelector, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	if err != nil {
		return Term{}, err
	}
	namespaces := t.Namespaces
	if len(namespaces) == 0 && t.NamespaceSelector == nil {
		namespaces = []string{pod.Namespace}
	}
	return Term{Namespaces: namespaces, NamespaceSelector: nsSelector, Selector: selector, TopologyKey: t.TopologyKey}, nil
}
