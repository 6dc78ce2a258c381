package rest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/balsahq/balsa/control/storage"
	"github.com/balsahq/balsa/raftstore"
)

// The key prefixes of claims. The value is "namespace/name" of the Service that holds the claim.
const (
	ipClaims   = "/balsa/clusterips/"
	portClaims = "/balsa/nodeports/"
)

// claimsOf returns the keys that a Service claims: its cluster IPs, its node ports, its health check port. Nothing else
// decides what a Service claims.
func claimsOf(s *api.Service) []string {
	var keys []string
	if s == nil {
		return nil
	}
	if s.Spec.Type != api.ServiceTypeExternalName {
		for _, ip := range s.Spec.ClusterIPs {
			if ip != "" && ip != api.ClusterIPNone {
				keys = append(keys, ipClaims+canonical(ip))
			}
		}
	}
	for i := range s.Spec.Ports {
		if p := s.Spec.Ports[i].NodePort; p != 0 {
			keys = append(keys, portClaims+strconv.Itoa(int(p)))
		}
	}
	if apiservice.NeedsHealthCheck(s) && s.Spec.HealthCheckNodePort != 0 {
		keys = append(keys, portClaims+strconv.Itoa(int(s.Spec.HealthCheckNodePort)))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ServiceAt returns the Service that holds a cluster IP.
func ServiceAt(v *raftstore.View, a netip.Addr) (namespace, name string, ok bool) {
	kv := v.Get(ipClaims + canonical(a.Unmap().String()))
	if kv == nil {
		return "", "", false
	}
	return strings.Cut(string(kv.Value), "/")
}

func canonical(ip string) string {
	if p := net.ParseIP(ip); p != nil {
		return p.String()
	}
	return ip
}

// claiming is the storage of Services; it writes their claims in the same Txn.
type claiming struct {
	apistorage.Interface
	addressKey func(ip string) string // the key of an address's IPAddress object; nil: IPAddresses are not kept

	transformer value.Transformer // of stored IPAddresses; nil: none
}

// Create claims the addresses of obj. The error is storage.ErrExtraCompare if another Service holds one of them.
func (c *claiming) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	extras, err := c.extras(nil, obj)
	if err != nil {
		return err
	}
	return c.Interface.Create(storage.WithExtras(ctx, extras), key, obj, out, ttl)
}

// Delete releases the addresses of the deleted object.
func (c *claiming) Delete(ctx context.Context, key string, out runtime.Object, pre *apistorage.Preconditions,
	validate apistorage.ValidateObjectFunc, cached runtime.Object, opts apistorage.DeleteOptions,
) error {
	var extras storage.Extras
	releasing := func(ctx context.Context, obj runtime.Object) error {
		if err := validate(ctx, obj); err != nil {
			return err
		}
		e, err := c.extras(obj, nil)
		if err == nil {
			extras = *e
		}
		return err
	}
	return c.Interface.Delete(storage.WithExtras(ctx, &extras), key, out, pre, releasing, cached, opts)
}

// GuaranteedUpdate claims and releases the difference between the old and the new object.
func (c *claiming) GuaranteedUpdate(ctx context.Context, key string, dest runtime.Object, ignoreNotFound bool, pre *apistorage.Preconditions,
	update apistorage.UpdateFunc, cached runtime.Object,
) error {
	var extras storage.Extras
	claimed := func(in runtime.Object, meta apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
		before := in.DeepCopyObject() // update may change in itself
		out, ttl, err := update(in, meta)
		if err != nil {
			return nil, nil, err
		}
		e, err := c.extras(before, out)
		if err != nil {
			return nil, nil, err
		}
		extras = *e
		return out, ttl, nil
	}
	return c.Interface.GuaranteedUpdate(storage.WithExtras(ctx, &extras), key, dest, ignoreNotFound, pre, claimed, cached)
}

// extras returns the compares and operations of a Txn that turns before into after; either may be nil.
func (c *claiming) extras(before, after runtime.Object) (*storage.Extras, error) {
	old, _ := before.(*api.Service)
	svc, _ := after.(*api.Service)
	had, has := claimsOf(old), claimsOf(svc)
	e := &storage.Extras{}
	for _, key := range had {
		if !slices.Contains(has, key) {
			e.Ops = append(e.Ops, raftstore.Op{Type: raftstore.OpDelete, Key: key})
			if obj := c.addressOf(key); obj != "" {
				e.Ops = append(e.Ops, raftstore.Op{Type: raftstore.OpDelete, Key: obj})
			}
		}
	}
	for _, key := range has {
		if slices.Contains(had, key) {
			continue
		}
		e.Compares = append(e.Compares, raftstore.CreateRevisionIs(key, 0))
		e.Ops = append(e.Ops, raftstore.Op{Type: raftstore.OpPut, Key: key, Value: []byte(svc.Namespace + "/" + svc.Name)})
		if obj := c.addressOf(key); obj != "" {
			data, err := encodeAddress(key[len(ipClaims):], svc)
			if err == nil && c.transformer != nil {
				data, err = c.transformer.TransformToStorage(context.Background(), data, value.DefaultContext(obj))
			}
			if err != nil {
				return nil, err
			}
			e.Compares = append(e.Compares, raftstore.CreateRevisionIs(obj, 0))
			e.Ops = append(e.Ops, raftstore.Op{Type: raftstore.OpPut, Key: obj, Value: data})
		}
	}
	return e, nil
}

func (c *claiming) addressOf(claim string) string {
	if c.addressKey == nil || len(claim) <= len(ipClaims) || claim[:len(ipClaims)] != ipClaims {
		return ""
	}
	return c.addressKey(claim[len(ipClaims):])
}

// addressEncoder encodes networking.k8s.io/v1 objects as the storage does.
var addressEncoder = legacyscheme.Codecs.EncoderForVersion(
	protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme), networkingv1.SchemeGroupVersion)

// encodeAddress encodes the IPAddress object by which the API shows a claimed address.
func encodeAddress(ip string, svc *api.Service) ([]byte, error) {
	family := string(api.IPv4Protocol)
	if p := net.ParseIP(ip); p != nil && p.To4() == nil {
		family = string(api.IPv6Protocol)
	}
	data, err := runtime.Encode(addressEncoder, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip, UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(), Generation: 1,
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: family, networkingv1.LabelManagedBy: "ipallocator.k8s.io"},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: svc.Namespace, Name: svc.Name}},
	})
	if err != nil {
		return nil, fmt.Errorf("rest: encode IPAddress %s: %w", ip, err)
	}
	return data, nil
}
