package rest

import (
	"fmt"
	"net"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// This file decides a Service's ipFamilyPolicy and ipFamilies. The cluster has Service addresses of one family or two.
// Headless Services without a selector may name both in any cluster, because a user maintains their endpoints. A
// Service changes between one family and two only when its policy says so (KEP-563).

var (
	policyPath   = field.NewPath("spec", "ipFamilyPolicy")
	familiesPath = field.NewPath("spec", "ipFamilies")
	ipsPath      = field.NewPath("spec", "clusterIPs")
)

func invalid(name string, el field.ErrorList) error {
	if len(el) == 0 {
		return nil
	}
	return apierrors.NewInvalid(api.Kind("Service"), name, el)
}

func headless(s *api.Service) bool {
	return len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == api.ClusterIPNone || s.Spec.ClusterIP == api.ClusterIPNone
}

func other(f api.IPFamily) api.IPFamily {
	if f == api.IPv4Protocol {
		return api.IPv6Protocol
	}
	return api.IPv4Protocol
}

func familyOf(ip string) api.IPFamily {
	if p := net.ParseIP(ip); p != nil && p.To4() == nil {
		return api.IPv6Protocol
	}
	return api.IPv4Protocol
}

// setFamilies fills the fields that the client left out, and refuses what the cluster does not have. old is nil on
// create.
func setFamilies(s, old *api.Service, cluster blocks) error {
	if s.Spec.Type == api.ServiceTypeExternalName || unchangedPreferDual(s, old) {
		return nil
	}
	defaultPolicy(s, old)
	if el := validation.ValidateServiceClusterIPsRelatedFields(s, old); len(el) != 0 {
		return invalid(s.Name, el)
	}
	el := reduce(s, old)
	el = append(el, checkCounts(s)...)
	el = append(el, inferFamilies(s, cluster)...)
	if len(el) > 0 {
		return invalid(s.Name, el)
	}
	if headless(s) && len(s.Spec.Selector) == 0 {
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = []api.IPFamily{cluster.primary()}
		}
		if len(s.Spec.IPFamilies) < 2 && *s.Spec.IPFamilyPolicy != api.IPFamilyPolicySingleStack {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, other(s.Spec.IPFamilies[0]))
		}
		return nil
	}
	if *s.Spec.IPFamilyPolicy == api.IPFamilyPolicyRequireDualStack && len(cluster) < 2 {
		el = append(el, field.Invalid(policyPath, s.Spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, f := range s.Spec.IPFamilies {
		if _, ok := cluster.of(f); !ok {
			el = append(el, field.Invalid(familiesPath.Index(i), f, "not configured on this cluster"))
		}
	}
	if len(el) > 0 {
		return invalid(s.Name, el)
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []api.IPFamily{cluster.primary()}
	}
	if *s.Spec.IPFamilyPolicy != api.IPFamilyPolicySingleStack && len(s.Spec.IPFamilies) == 1 && len(cluster) == 2 {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, other(s.Spec.IPFamilies[0]))
	}
	return nil
}

// defaultPolicy sets a missing policy. An update keeps the old one. A create gets SingleStack, except a headless
// Service without a selector.
func defaultPolicy(s, old *api.Service) {
	if s.Spec.IPFamilyPolicy != nil {
		return
	}
	policy := api.IPFamilyPolicySingleStack
	switch {
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		policy = *old.Spec.IPFamilyPolicy
	case headless(s) && len(s.Spec.Selector) == 0:
		policy = api.IPFamilyPolicyRequireDualStack
	}
	s.Spec.IPFamilyPolicy = &policy
}

// reduce handles an update to fewer families.
func reduce(s, old *api.Service) (el field.ErrorList) {
	if old == nil {
		return nil
	}
	if *s.Spec.IPFamilyPolicy == api.IPFamilyPolicySingleStack {
		if slices.Equal(old.Spec.ClusterIPs, s.Spec.ClusterIPs) && len(s.Spec.ClusterIPs) > 1 {
			s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
		}
		if slices.Equal(old.Spec.IPFamilies, s.Spec.IPFamilies) && len(s.Spec.IPFamilies) > 1 {
			s.Spec.IPFamilies = s.Spec.IPFamilies[:1]
		}
		return nil
	}
	if n := len(s.Spec.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
		el = append(el, field.Invalid(policyPath, s.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
	}
	if n := len(s.Spec.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
		el = append(el, field.Invalid(policyPath, s.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
	}
	return el
}

func checkCounts(s *api.Service) (el field.ErrorList) {
	if *s.Spec.IPFamilyPolicy != api.IPFamilyPolicySingleStack {
		return nil
	}
	const text = "must be 'RequireDualStack' or 'PreferDualStack' when multiple %s are specified"
	if len(s.Spec.ClusterIPs) == 2 {
		el = append(el, field.Invalid(policyPath, s.Spec.IPFamilyPolicy, fmt.Sprintf(text, "cluster IPs")))
	}
	if len(s.Spec.IPFamilies) == 2 {
		el = append(el, field.Invalid(policyPath, s.Spec.IPFamilyPolicy, fmt.Sprintf(text, "IP families")))
	}
	return el
}

func inferFamilies(s *api.Service, cluster blocks) (el field.ErrorList) {
	for i, ip := range s.Spec.ClusterIPs {
		if ip == api.ClusterIPNone {
			break
		}
		if i < len(s.Spec.IPFamilies) || ip == "" {
			continue
		}
		f := familyOf(ip)
		if _, ok := cluster.of(f); ok {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, f)
		} else {
			el = append(el, field.Invalid(ipsPath.Index(i), s.Spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", f)))
		}
	}
	return el
}

// unchangedPreferDual reports whether a PreferDualStack Service stays as it is because its addresses do not change,
// although the cluster may have another number of families by now.
func unchangedPreferDual(s, old *api.Service) bool {
	prefers := func(s *api.Service) bool {
		return s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == api.IPFamilyPolicyPreferDualStack
	}
	return old != nil && old.Spec.Type == s.Spec.Type && prefers(s) && prefers(old) &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
}
