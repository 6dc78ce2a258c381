package rest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// This file chooses the addresses and ports of a Service. They are claimed when the Service is written (claims.go). If
// another Service claimed one of them first, they are chosen again.

// allocateCreate completes a new Service.
func allocateCreate(s *api.Service, c *chooser) error {
	if err := setFamilies(s, nil, c.blocks); err != nil {
		return err
	}
	if err := chooseIPs(s, nil, c); err != nil {
		return err
	}
	if usesNodePorts(s) {
		if err := createPorts(s, c); err != nil {
			return err
		}
	}
	if apiservice.NeedsHealthCheck(s) {
		return healthPort(s, c)
	}
	return nil
}

// allocateUpdate completes a changed Service. Addresses that it held before and still names need no new claim.
func allocateUpdate(s, old *api.Service, c *chooser) error {
	if err := setFamilies(s, old, c.blocks); err != nil {
		return err
	}
	if !unchangedPreferDual(s, old) {
		if err := chooseIPs(s, old, c); err != nil {
			return err
		}
	}
	if usesNodePorts(s) {
		if err := updatePorts(s, old, c); err != nil {
			return err
		}
	}
	if !apiservice.NeedsHealthCheck(old) && apiservice.NeedsHealthCheck(s) {
		return healthPort(s, c)
	}
	return nil
}

// chooseIPs gives the Service one address for each family that has none, and checks the requested addresses.
func chooseIPs(s, old *api.Service, c *chooser) error {
	if s.Spec.Type == api.ServiceTypeExternalName || headless(s) {
		return nil
	}
	if old != nil && old.Spec.Type != api.ServiceTypeExternalName && headless(old) {
		return nil // the field is immutable: validation refuses the change
	}
	var held []string
	if old != nil && old.Spec.Type != api.ServiceTypeExternalName {
		held = old.Spec.ClusterIPs
	}
	asked := slices.Clone(s.Spec.ClusterIPs)
	ips := make([]string, len(s.Spec.IPFamilies))
	for i := range ips {
		if i < len(asked) {
			ips[i] = asked[i]
		}
		if ips[i] != "" && slices.Contains(held, ips[i]) {
			continue
		}
		if old != nil && i < len(held) && ips[i] != "" {
			continue // validation refuses a changed address, in upstream's words
		}
		ip, err := chooseIP(ips[i], s.Spec.IPFamilies[i], s, c)
		if err != nil {
			return err
		}
		ips[i] = ip
	}
	s.Spec.ClusterIPs = ips
	if len(ips) > 0 {
		s.Spec.ClusterIP = ips[0]
	}
	return nil
}

func chooseIP(asked string, family api.IPFamily, s *api.Service, c *chooser) (string, error) {
	if asked == "" {
		ip, err := c.nextIP(family)
		if err != nil {
			return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", s.Name, err))
		}
		return ip, nil
	}
	if net.ParseIP(asked) == nil {
		return "", apierrors.NewInternalError(fmt.Errorf("failed to parse service IP %q", asked))
	}
	if err := c.checkIP(asked); err != nil {
		return "", invalid(s.Name, field.ErrorList{field.Invalid(ipsPath, s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", asked, err))})
	}
	return asked, nil
}

func usesNodePorts(s *api.Service) bool {
	return s.Spec.Type == api.ServiceTypeNodePort || s.Spec.Type == api.ServiceTypeLoadBalancer
}

// wantsNodePorts reports whether ports without a requested number get a node port.
func wantsNodePorts(s *api.Service) bool {
	return s.Spec.Type == api.ServiceTypeNodePort ||
		s.Spec.Type == api.ServiceTypeLoadBalancer && (s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts)
}

func portInvalid(s *api.Service, i int, port int32, err error) error {
	return invalid(s.Name, field.ErrorList{field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port, err.Error())})
}

func portInternal(what string, err error) error {
	return apierrors.NewInternalError(fmt.Errorf("failed to allocate %s: %w", what, err))
}

// createPorts gives node ports to a new Service. Ports of the same number (TCP and UDP of a DNS service) share a node
// port, the requested one if there is one.
func createPorts(s *api.Service, c *chooser) error {
	byPort := map[int32]int32{}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort == 0 && !wantsNodePorts(s) {
			continue
		}
		shared := byPort[p.Port]
		switch {
		case shared == 0:
			want := requested(p.Port, s.Spec.Ports)
			if want != 0 {
				if err := c.checkPort(int(want)); err != nil {
					return portInvalid(s, i, want, err)
				}
			} else {
				n, err := c.nextPort()
				if err != nil {
					return portInternal("a nodePort", err)
				}
				want = int32(n)
			}
			p.NodePort, byPort[p.Port] = want, want
		case p.NodePort == 0:
			p.NodePort = shared
		case p.NodePort != shared:
			if err := c.checkPort(int(p.NodePort)); err != nil {
				return portInvalid(s, i, p.NodePort, err)
			}
		}
	}
	return nil
}

func requested(port int32, ports []api.ServicePort) int32 {
	for i := range ports {
		if ports[i].Port == port && ports[i].NodePort != 0 {
			return ports[i].NodePort
		}
	}
	return 0
}

func updatePorts(s, old *api.Service, c *chooser) error {
	held := map[int32]bool{}
	for i := range old.Spec.Ports {
		held[old.Spec.Ports[i].NodePort] = true
	}
	asked := maps.Clone(held)
	type pair struct {
		protocol api.Protocol
		port     int32
	}
	seen := map[pair]bool{}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort == 0 {
			if !wantsNodePorts(s) {
				continue
			}
			n, err := c.nextPort()
			if err != nil {
				return portInternal("a nodePort", err)
			}
			p.NodePort = int32(n)
		} else if !asked[p.NodePort] {
			if err := c.checkPort(int(p.NodePort)); err != nil {
				return portInvalid(s, i, p.NodePort, err)
			}
			asked[p.NodePort] = true
		}
		if k := (pair{p.Protocol, p.NodePort}); seen[k] {
			return fmt.Errorf("duplicate nodePort: %v", k)
		} else {
			seen[k] = true
		}
	}
	return nil
}

func healthPort(s *api.Service, c *chooser) error {
	if want := s.Spec.HealthCheckNodePort; want != 0 {
		if err := c.checkPort(int(want)); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %v", want, err))
		}
		return nil
	}
	n, err := c.nextPort()
	if err != nil {
		return portInternal("a HealthCheck NodePort", err)
	}
	s.Spec.HealthCheckNodePort = int32(n)
	return nil
}

// keepAllocated fills in what was allocated before and the new object leaves out, so that sending the first manifest
// again changes nothing.
func keepAllocated(s, old *api.Service) {
	if s.Spec.Type != api.ServiceTypeExternalName && old.Spec.Type != api.ServiceTypeExternalName {
		if s.Spec.ClusterIP == "" {
			s.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = old.Spec.ClusterIPs
		}
	}
	if wantsNodePorts(s) && wantsNodePorts(old) {
		keepPorts(s, old)
	}
	if apiservice.NeedsHealthCheck(s) && apiservice.NeedsHealthCheck(old) && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

func keepPorts(s, old *api.Service) {
	now, byName := map[int32]bool{}, map[string]int32{}
	for i := range s.Spec.Ports {
		now[s.Spec.Ports[i].NodePort] = true
	}
	for i := range old.Spec.Ports {
		byName[old.Spec.Ports[i].Name] = old.Spec.Ports[i].NodePort
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if kept := byName[p.Name]; p.NodePort == 0 && kept != 0 && !now[kept] {
			p.NodePort = kept
		}
	}
}

// pairIPs makes clusterIP and clusterIPs agree, whichever of them the client set. old is nil on create.
func pairIPs(s, old *api.Service) {
	if old == nil {
		if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		}
		return
	}
	if len(old.Spec.ClusterIPs) > 0 && len(s.Spec.ClusterIPs) == 0 && old.Spec.ClusterIP == s.Spec.ClusterIP {
		s.Spec.ClusterIPs = old.Spec.ClusterIPs
	}
	if old.Spec.ClusterIP == s.Spec.ClusterIP || !slices.Equal(old.Spec.ClusterIPs, s.Spec.ClusterIPs) {
		return
	}
	if s.Spec.ClusterIP == "" {
		s.Spec.ClusterIPs = nil
	} else {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

var errClaimsLost = errors.New("other requests claimed each chosen address first")
