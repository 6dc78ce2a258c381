package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const endpointsEach = 5

// crowded is a namespace of many Services whose endpoints are addresses without a pod.
type crowded struct {
	lab    *lab
	slices []*discovery.EndpointSlice // the newest version of each Service's
	fresh  int                        // how many addresses have been given
}

func sliceOf(name string, addresses ...netip.Addr) *discovery.EndpointSlice {
	port, protocol, ready, none := int32(webPort), corev1.ProtocolTCP, true, ""
	s := &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discovery.LabelServiceName: name}},
		AddressType: discovery.AddressTypeIPv4, Ports: []discovery.EndpointPort{{Name: &none, Port: &port, Protocol: &protocol}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{a.String()}, Conditions: discovery.EndpointConditions{Ready: &ready}})
	}
	return s
}

// address returns an address that was not used before.
func (c *crowded) address() netip.Addr {
	c.fresh++
	return netip.AddrFrom4([4]byte{10, byte(128 + c.fresh>>16), byte(c.fresh >> 8), byte(c.fresh)})
}

// grow creates Services until there are that many.
func (c *crowded) grow(ctx context.Context, services int) error {
	const writers = 16
	first := len(c.slices)
	for len(c.slices) < services {
		var addresses []netip.Addr
		for range endpointsEach {
			addresses = append(addresses, c.address())
		}
		c.slices = append(c.slices, sliceOf("s"+strconv.Itoa(len(c.slices)), addresses...))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	faults := make([]error, writers)
	var joined sync.WaitGroup
	for w := range writers {
		joined.Go(func() {
			for i := first + w; i < services && faults[w] == nil; i += writers {
				if faults[w] = c.create(ctx, i); faults[w] != nil {
					cancel()
				}
			}
		})
	}
	joined.Wait()
	return errors.Join(faults...)
}

func (c *crowded) create(ctx context.Context, i int) (err error) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: c.slices[i].Name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	if _, err = c.lab.client.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("Service %d: %w", i, err)
	}
	c.slices[i], err = c.lab.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, c.slices[i], metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("endpoints of Service %d: %w", i, err)
	}
	return nil
}

// change replaces the address of one endpoint of a Service.
func (c *crowded) change(ctx context.Context, service int, to netip.Addr) (err error) {
	changed := c.slices[service].DeepCopy()
	changed.Endpoints[c.fresh%endpointsEach].Addresses = []string{to.String()}
	c.slices[service], err = c.lab.client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, changed, metav1.UpdateOptions{})
	return err
}
