package rest_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/rest"
	"github.com/balsahq/balsa/raftstore"
)

var (
	services4 = netip.MustParsePrefix("10.96.0.0/16")
	services6 = netip.MustParsePrefix("fd00:96::/108")
)

// cluster is an API server with Service networks of two families.
type cluster struct {
	*testing.T
	store *raftstore.Store
	admin *kubernetes.Clientset
}

// dualCluster starts a cluster whose primary family is first's. It serves only clients in this process.
func dualCluster(t *testing.T, first, second netip.Prefix) *cluster {
	t.Helper()
	dir := t.TempDir()
	store, err := raftstore.Open(raftstore.Config{Dir: filepath.Join(dir, "raft")})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.Open(pki.Config{Dir: filepath.Join(dir, "tls"), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: first.Addr().Next().AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	server, err := control.New(control.Config{Store: store, PKI: authority, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"),
		ServiceCIDR: first, SecondServiceCIDR: second, ClusterDNS: netip.MustParseAddr("10.96.0.10"),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		t.Fatal(err)
	}
	storeCtx, stopStore := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	storeDone, done := make(chan error, 1), make(chan error, 1)
	go func() { storeDone <- store.Run(storeCtx) }()
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; stopStore(); <-storeDone })
	select {
	case <-server.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("not ready")
	}
	return &cluster{T: t, store: store, admin: kubernetes.NewForConfigOrDie(server.Client(control.Identity{User: "admin", Groups: []string{"system:masters"}}))}
}

func (c *cluster) create(s *corev1.Service) (*corev1.Service, error) {
	return c.admin.CoreV1().Services("default").Create(c.Context(), s, metav1.CreateOptions{})
}

func (c *cluster) mustCreate(s *corev1.Service) *corev1.Service {
	c.Helper()
	out, err := c.create(s)
	if err != nil {
		c.Fatalf("create %s: %v", s.Name, err)
	}
	return out
}

func (c *cluster) update(s *corev1.Service) (*corev1.Service, error) {
	return c.admin.CoreV1().Services("default").Update(c.Context(), s, metav1.UpdateOptions{})
}

func (c *cluster) mustUpdate(s *corev1.Service) *corev1.Service {
	c.Helper()
	out, err := c.update(s)
	if err != nil {
		c.Fatalf("update %s: %v", s.Name, err)
	}
	return out
}

func (c *cluster) patch(name, patch string) *corev1.Service {
	c.Helper()
	out, err := c.admin.CoreV1().Services("default").Patch(c.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		c.Fatalf("patch %s: %v", name, err)
	}
	return out
}

// holds checks a Service: it has this policy and these families; an address of each family is claimed for it and shown
// as an IPAddress; addresses of the Service before that it does not have any more are free.
func (c *cluster) holds(s, before *corev1.Service, policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) {
	c.Helper()
	if s.Spec.IPFamilyPolicy == nil || *s.Spec.IPFamilyPolicy != policy || !slices.Equal(s.Spec.IPFamilies, families) {
		c.Fatalf("%s: want %s of %v: %+v", s.Name, policy, families, s.Spec)
	}
	if len(s.Spec.ClusterIPs) != len(families) || s.Spec.ClusterIPs[0] != s.Spec.ClusterIP {
		c.Fatalf("%s: addresses %q, %q", s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs)
	}
	for i, ip := range s.Spec.ClusterIPs {
		network := map[corev1.IPFamily]netip.Prefix{corev1.IPv4Protocol: services4, corev1.IPv6Protocol: services6}[families[i]]
		if a, err := netip.ParseAddr(ip); err != nil || !network.Contains(a) {
			c.Errorf("%s: %q is not in %s", s.Name, ip, network)
		}
		if got := rest.Claimed(c.store.View(), ip); got != "default/"+s.Name {
			c.Errorf("%s: %s is claimed by %q", s.Name, ip, got)
		}
		object, err := c.admin.NetworkingV1().IPAddresses().Get(c.Context(), ip, metav1.GetOptions{})
		if err != nil || object.Labels["ipaddress.kubernetes.io/ip-family"] != string(families[i]) || object.Spec.ParentRef.Name != s.Name {
			c.Errorf("%s: IPAddress %s: %+v, %v", s.Name, ip, object, err)
		}
	}
	if before == nil {
		return
	}
	for _, ip := range before.Spec.ClusterIPs {
		if slices.Contains(s.Spec.ClusterIPs, ip) {
			continue
		}
		if got := rest.Claimed(c.store.View(), ip); got != "" {
			c.Errorf("%s is still claimed by %q", ip, got)
		}
		if _, err := c.admin.NetworkingV1().IPAddresses().Get(c.Context(), ip, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			c.Errorf("IPAddress %s: %v", ip, err)
		}
	}
}

// Short names for tables.
const (
	v4, v6          = corev1.IPv4Protocol, corev1.IPv6Protocol
	single          = corev1.IPFamilyPolicySingleStack
	prefer, require = corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack
)

// spec changes a Service's policy and families.
func spec(policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		s.IPFamilies = families
		if policy != "" {
			s.IPFamilyPolicy = &policy
		}
	}
}

func with(ips ...string) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.ClusterIPs, s.ClusterIP = ips, ips[0] }
}

func both(list ...func(*corev1.ServiceSpec)) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		for _, f := range list {
			f(s)
		}
	}
}

func headlessSpec(s *corev1.ServiceSpec)   { s.ClusterIP = corev1.ClusterIPNone }
func noSelectorSpec(s *corev1.ServiceSpec) { s.Selector = nil }

func TestServicesOfTwoFamilies(t *testing.T) {
	c := dualCluster(t, services4, services6)
	t.Run("create", func(t *testing.T) { creates(c.with(t)) })
	t.Run("refusals", func(t *testing.T) { refuses(c.with(t)) })
	t.Run("from one family to two and back", func(t *testing.T) { changes(c.with(t)) })
	t.Run("headless", func(t *testing.T) { headlessOnes(c.with(t)) })
	t.Run("external name", func(t *testing.T) { externalNames(c.with(t)) })
	t.Run("what is there from the beginning", func(t *testing.T) { seeded(c.with(t), v4, services4, services6) })
}

func TestServicesOfTwoFamiliesWithIPv6First(t *testing.T) {
	c := dualCluster(t, services6, services4)
	seeded(c, v6, services6, services4)
	c.holds(c.mustCreate(service("plain", nil)), nil, single, v6)
	c.holds(c.mustCreate(service("dual", spec(prefer))), nil, prefer, v6, v4)
	c.holds(c.mustCreate(service("other", spec(require, v4))), nil, require, v4, v6)
}

func (c *cluster) with(t *testing.T) *cluster { return &cluster{T: t, store: c.store, admin: c.admin} }

func creates(c *cluster) {
	for name, tt := range map[string]struct {
		change   func(*corev1.ServiceSpec)
		policy   corev1.IPFamilyPolicy
		families []corev1.IPFamily
	}{
		"plain":          {nil, single, []corev1.IPFamily{v4}},
		"prefer":         {spec(prefer), prefer, []corev1.IPFamily{v4, v6}},
		"require":        {spec(require), require, []corev1.IPFamily{v4, v6}},
		"six-only":       {spec("", v6), single, []corev1.IPFamily{v6}},
		"six-first":      {spec(prefer, v6), prefer, []corev1.IPFamily{v6, v4}},
		"six-then-four":  {spec(require, v6, v4), require, []corev1.IPFamily{v6, v4}},
		"by-address":     {with("fd00:96::77"), single, []corev1.IPFamily{v6}},
		"by-addresses":   {both(spec(require), with("fd00:96::78", "10.96.0.78")), require, []corev1.IPFamily{v6, v4}},
		"by-the-first":   {both(spec(prefer), with("10.96.0.79")), prefer, []corev1.IPFamily{v4, v6}},
		"second-address": {both(spec(require, v4, v6), with("10.96.0.80", "fd00:96::80")), require, []corev1.IPFamily{v4, v6}},
	} {
		c.Run(name, func(t *testing.T) {
			c := c.with(t)
			svc := service(name, tt.change)
			got := c.mustCreate(svc)
			c.holds(got, nil, tt.policy, tt.families...)
			for i, ip := range svc.Spec.ClusterIPs {
				if got.Spec.ClusterIPs[i] != ip {
					t.Errorf("asked for %s, got %v", ip, got.Spec.ClusterIPs)
				}
			}
			if err := c.admin.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, ip := range got.Spec.ClusterIPs {
				if by := rest.Claimed(c.store.View(), ip); by != "" {
					t.Errorf("%s is still claimed by %q", ip, by)
				}
			}
		})
	}
}

func refuses(c *cluster) {
	c.mustCreate(service("taken", both(spec(require), with("10.96.0.90", "fd00:96::90"))))
	for name, tt := range map[string]struct {
		change func(*corev1.ServiceSpec)
		want   string
	}{
		"two families, one wanted":    {spec(single, v4, v6), "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"},
		"two addresses, one wanted":   {both(spec(single), with("10.96.0.91", "fd00:96::91")), "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"},
		"second address taken":        {both(spec(require), with("10.96.0.92", "fd00:96::90")), "failed to allocate IP fd00:96::90: provided IP is already allocated"},
		"second address elsewhere":    {both(spec(require), with("10.96.0.93", "fd00:97::1")), "the provided IP (fd00:97::1) is not in the valid range. The range of valid IPs is fd00:96::/108"},
		"address of another family":   {both(spec(single, v4), with("fd00:96::94")), "expected an IPv4 value as indicated by `ipFamilies[0]`"},
		"two addresses of one family": {both(spec(require), with("10.96.0.95", "10.96.0.96")), "may specify no more than one IP for each IP family"},
	} {
		c.Run(name, func(t *testing.T) {
			c := c.with(t)
			before := kept(c.store.View())
			if _, err := c.create(service("bad", tt.change)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want invalid with %q", err, tt.want)
			}
			if now := kept(c.store.View()); !slices.Equal(now, before) {
				t.Errorf("a refused Service wrote to the store: %v → %v", before, now)
			}
		})
	}
}

func changes(c *cluster) {
	s := c.mustCreate(service("s", nil))
	up := c.patch("s", `{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`)
	c.holds(up, s, require, v4, v6)
	if up.Spec.ClusterIP != s.Spec.ClusterIP {
		c.Errorf("the first address changed from %s to %s", s.Spec.ClusterIP, up.Spec.ClusterIP)
	}
	manifest := service("s", nil) // as the user wrote it, without what was allocated or decided since
	manifest.ResourceVersion = up.ResourceVersion
	same := c.mustUpdate(manifest)
	c.holds(same, up, require, v4, v6)
	if !slices.Equal(same.Spec.ClusterIPs, up.Spec.ClusterIPs) {
		c.Errorf("a manifest without addresses changed them: %v → %v", up.Spec.ClusterIPs, same.Spec.ClusterIPs)
	}

	for what, change := range map[string]func(*corev1.Service){
		"must be 'SingleStack' to release the secondary cluster IP": func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] },
		"must be 'SingleStack' to release the secondary IP family":  func(s *corev1.Service) { s.Spec.IPFamilies = s.Spec.IPFamilies[:1] },
		"may not change once set":                                   func(s *corev1.Service) { s.Spec.ClusterIPs[1] = "fd00:96::1:1" },
	} {
		bad := same.DeepCopy()
		change(bad)
		if _, err := c.update(bad); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), what) {
			c.Errorf("got %v, want invalid with %q", err, what)
		}
	}

	down := c.patch("s", `{"spec":{"ipFamilyPolicy":"SingleStack"}}`)
	c.holds(down, up, single, v4)
	c.holds(c.patch("s", `{"spec":{"ipFamilyPolicy":"PreferDualStack"}}`), down, prefer, v4, v6)

	down = c.patch("s", `{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"],"clusterIPs":["`+s.Spec.ClusterIP+`"]}}`)
	c.holds(down, nil, single, v4)
	asked := c.patch("s", `{"spec":{"ipFamilyPolicy":"PreferDualStack","ipFamilies":["IPv4","IPv6"],"clusterIPs":["`+s.Spec.ClusterIP+`","fd00:96::55"]}}`)
	c.holds(asked, down, prefer, v4, v6)
	if asked.Spec.ClusterIPs[1] != "fd00:96::55" {
		c.Errorf("asked for fd00:96::55, got %v", asked.Spec.ClusterIPs)
	}

	bad := asked.DeepCopy()
	bad.Spec.IPFamilies = []corev1.IPFamily{v6, v4}
	if _, err := c.update(bad); !apierrors.IsInvalid(err) {
		c.Errorf("the families in another order: %v", err)
	}
}

func headlessOnes(c *cluster) {
	for name, tt := range map[string]struct {
		change   func(*corev1.ServiceSpec)
		policy   corev1.IPFamilyPolicy
		families []corev1.IPFamily
	}{
		"h-plain":       {headlessSpec, single, []corev1.IPFamily{v4}},
		"h-prefer":      {both(headlessSpec, spec(prefer)), prefer, []corev1.IPFamily{v4, v6}},
		"h-six":         {both(headlessSpec, spec("", v6)), single, []corev1.IPFamily{v6}},
		"h-nobody":      {both(headlessSpec, noSelectorSpec), require, []corev1.IPFamily{v4, v6}},
		"h-nobody-one":  {both(headlessSpec, noSelectorSpec, spec(single, v6)), single, []corev1.IPFamily{v6}},
		"h-nobody-swap": {both(headlessSpec, noSelectorSpec, spec(require, v6)), require, []corev1.IPFamily{v6, v4}},
	} {
		s := c.mustCreate(service(name, tt.change))
		if *s.Spec.IPFamilyPolicy != tt.policy || !slices.Equal(s.Spec.IPFamilies, tt.families) || !slices.Equal(s.Spec.ClusterIPs, []string{corev1.ClusterIPNone}) {
			c.Errorf("%s: want %s of %v: %+v", name, tt.policy, tt.families, s.Spec)
		}
	}
	up := c.patch("h-plain", `{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`)
	if !slices.Equal(up.Spec.IPFamilies, []corev1.IPFamily{v4, v6}) || !slices.Equal(up.Spec.ClusterIPs, []string{corev1.ClusterIPNone}) {
		c.Errorf("headless, two families now: %+v", up.Spec)
	}
	if down := c.patch("h-plain", `{"spec":{"ipFamilyPolicy":"SingleStack"}}`); !slices.Equal(down.Spec.IPFamilies, []corev1.IPFamily{v4}) {
		c.Errorf("headless, one family again: %+v", down.Spec)
	}
}

func externalNames(c *cluster) {
	s := c.mustCreate(service("e", func(s *corev1.ServiceSpec) { s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "example.com" }))
	if s.Spec.IPFamilyPolicy != nil || len(s.Spec.IPFamilies) > 0 || len(s.Spec.ClusterIPs) > 0 {
		c.Errorf("%+v", s.Spec)
	}
	dual := c.patch("e", `{"spec":{"type":"ClusterIP","externalName":null,"ipFamilyPolicy":"PreferDualStack"}}`)
	c.holds(dual, nil, prefer, v4, v6)
	back := c.patch("e", `{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":"","clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null}}`)
	if len(back.Spec.ClusterIPs) > 0 || len(back.Spec.IPFamilies) > 0 {
		c.Errorf("%+v", back.Spec)
	}
	for _, ip := range dual.Spec.ClusterIPs {
		if by := rest.Claimed(c.store.View(), ip); by != "" {
			c.Errorf("%s is still claimed by %q", ip, by)
		}
	}
}

// seeded checks that the cluster's own Services have one family each, and that the ServiceCIDR names both networks.
func seeded(c *cluster, primary corev1.IPFamily, first, second netip.Prefix) {
	cidr, err := c.admin.NetworkingV1().ServiceCIDRs().Get(c.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || !slices.Equal(cidr.Spec.CIDRs, []string{first.String(), second.String()}) {
		c.Errorf("ServiceCIDR: %+v, %v", cidr, err)
	}
	s, err := c.admin.CoreV1().Services("default").Get(c.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	c.holds(s, nil, single, primary)
	dns, err := c.admin.CoreV1().Services("kube-system").Get(c.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil || !slices.Equal(dns.Spec.ClusterIPs, []string{"10.96.0.10"}) || !slices.Equal(dns.Spec.IPFamilies, []corev1.IPFamily{v4}) {
		c.Errorf("kube-dns: %+v, %v", dns, err)
	}
}
