package aggregation_test

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/aggregation/aggregatedtest"
	"github.com/balsahq/balsa/control/controltest"
)

// podAddress is the address of the tests' servers. The cluster's dialer redirects it to loopback.
const podAddress = "192.0.2.10"

// cluster is an API server that reaches podAddress on this machine.
type cluster struct {
	*controltest.Server
	t        *testing.T
	core     *kubernetes.Clientset
	registry *clientset.Clientset
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dialer := &net.Dialer{}
	s := controltest.Start(t, func(c *control.Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, strings.Replace(address, podAddress, "127.0.0.1", 1))
		}
	})
	return clusterOf(t, s)
}

func clusterOf(t *testing.T, s *controltest.Server) *cluster {
	return &cluster{Server: s, t: t, core: s.Admin(), registry: clientset.NewForConfigOrDie(s.AdminConfig())}
}

// certificate returns the administrator's.
func (c *cluster) certificate() *tls.Certificate {
	certificate, err := c.PKI.Admin().GetClientCertificate(nil)
	c.must(err)
	return certificate
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// service makes a Service in kube-system whose one endpoint is port of this machine.
func (c *cluster) service(name string, port int) {
	c.t.Helper()
	ctx := c.t.Context()
	_, err := c.core.CoreV1().Services("kube-system").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{})
	c.must(err)
	c.endpoint(name, port)
}

func (c *cluster) endpoint(name string, port int) {
	c.t.Helper()
	_, err := c.core.DiscoveryV1().EndpointSlices("kube-system").Create(c.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{podAddress}}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(port))}},
	}, metav1.CreateOptions{})
	c.must(err)
}

func apiService(gv schema.GroupVersion, service string, ca []byte) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: 2000, VersionPriority: 10, CABundle: ca, InsecureSkipTLSVerify: ca == nil,
			Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: service},
		},
	}
}

func (c *cluster) register(s *apiregistrationv1.APIService) {
	c.t.Helper()
	_, err := c.registry.ApiregistrationV1().APIServices().Create(c.t.Context(), s, metav1.CreateOptions{})
	c.must(err)
}

// condition waits until an APIService has this availability, for this reason.
func (c *cluster) condition(name string, status apiregistrationv1.ConditionStatus, reason string) {
	c.t.Helper()
	controltest.Await(c.t, name+" is "+string(status)+": "+reason, func() bool {
		s, err := c.registry.ApiregistrationV1().APIServices().Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		have := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available)
		return have != nil && have.Status == status && have.Reason == reason
	})
}

// sea is a cluster with an aggregated server that is available.
func sea(t *testing.T) *cluster { return seaAs(t, aggregatedtest.GroupVersion) }

// seaAs is sea with fishes in another group and version.
func seaAs(t *testing.T, serves schema.GroupVersion) *cluster {
	c := newCluster(t)
	ctx := t.Context()
	_, err := c.core.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sea"}}, metav1.CreateOptions{})
	c.must(err)
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "sea", Namespace: "kube-system"}}
	_, err = c.core.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sea"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "system:auth-delegator"}, Subjects: subject,
	}, metav1.CreateOptions{})
	c.must(err)
	_, err = c.core.RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sea"}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "extension-apiserver-authentication-reader"}, Subjects: subject,
	}, metav1.CreateOptions{})
	c.must(err)
	controltest.Await(t, "whom aggregated servers believe is written", func() bool {
		_, err := c.core.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		return err == nil
	})
	server := aggregatedtest.Start(t, aggregatedtest.Config{Cluster: c.as("sea"), Service: "sea.kube-system.svc", Serves: serves})
	c.service("sea", server.Port)
	c.register(apiService(serves, "sea", server.CA))
	c.condition(serves.Version+"."+serves.Group, apiregistrationv1.ConditionTrue, "Passed")
	return c
}

// as returns a client of a service account in kube-system.
func (c *cluster) as(account string) *restclient.Config {
	c.t.Helper()
	token, err := c.core.CoreV1().ServiceAccounts("kube-system").CreateToken(c.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	c.must(err)
	out := c.Anybody()
	out.BearerToken = token.Status.Token
	return out
}

func (c *cluster) fishes(config *restclient.Config) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(config).Resource(aggregatedtest.GroupVersion.WithResource("fishes")).Namespace("default")
}

func fish(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": aggregatedtest.GroupVersion.String(), "kind": "Fish", "metadata": map[string]any{"name": name}, "data": map[string]any{"fins": "2"},
	}}
}

func TestAnAggregatedServerIsPartOfTheAPI(t *testing.T) {
	c := sea(t)
	ctx := t.Context()
	admin := c.fishes(c.AdminConfig())
	t.Run("objects", func(t *testing.T) {
		made, err := admin.Create(ctx, fish("carp"), metav1.CreateOptions{})
		c.must(err)
		if by := made.GetAnnotations()["by"]; by != "kubernetes-admin" {
			t.Errorf("made by %q", by)
		}
		list, err := admin.List(ctx, metav1.ListOptions{})
		c.must(err)
		if len(list.Items) != 1 || list.Items[0].GetName() != "carp" {
			t.Errorf("list: %v", list)
		}
		_, err = admin.Get(ctx, "whale", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("get what is not there: %v", err)
		}
	})
	t.Run("watch", func(t *testing.T) {
		w, err := admin.Watch(ctx, metav1.ListOptions{})
		c.must(err)
		defer w.Stop()
		_, err = admin.Create(ctx, fish("pike"), metav1.CreateOptions{})
		c.must(err)
		for e := range w.ResultChan() {
			if o, ok := e.Object.(*unstructured.Unstructured); ok && o.GetName() == "pike" {
				return
			}
		}
		t.Error("the watch ended")
	})
	t.Run("users and their rights", func(t *testing.T) {
		_, err := c.core.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "fisher"}}, metav1.CreateOptions{})
		c.must(err)
		fisher := c.fishes(c.as("fisher"))
		if _, err = fisher.Create(ctx, fish("eel"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Fatalf("without rights: %v", err)
		}
		_, err = c.core.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "fisher"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"sea.example.com"}, Resources: []string{"fishes"}, Verbs: []string{"create"}}},
		}, metav1.CreateOptions{})
		c.must(err)
		_, err = c.core.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "fisher"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "fisher"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "fisher", Namespace: "kube-system"}},
		}, metav1.CreateOptions{})
		c.must(err)
		made, err := fisher.Create(ctx, fish("eel"), metav1.CreateOptions{})
		c.must(err)
		if by := made.GetAnnotations()["by"]; by != "system:serviceaccount:kube-system:fisher" {
			t.Errorf("made by %q", by)
		}
	})
	t.Run("discovery", func(t *testing.T) {
		controltest.Await(t, "fishes are discovered", func() bool {
			groups, resources, err := c.core.Discovery().ServerGroupsAndResources()
			return err == nil && slices.ContainsFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == "sea.example.com" }) &&
				slices.ContainsFunc(resources, func(r *metav1.APIResourceList) bool {
					return r.GroupVersion == "sea.example.com/v1" && len(r.APIResources) > 0 && r.APIResources[0].Kind == "Fish"
				})
		})
		http := c.HTTP(c.certificate())
		for path, want := range map[string]string{
			"/apis": `"groupVersion":"sea.example.com/v1"`, "/apis/sea.example.com": `"kind":"APIGroup"`, "/apis/sea.example.com/v1": `"name":"fishes"`,
		} {
			if code, body := c.Ask(t, http, "GET", path, nil, nil); code != 200 || !strings.Contains(strings.ReplaceAll(body, ": ", ":"), want) {
				t.Errorf("%s: %d, %q is not in\n%s", path, code, want, body)
			}
		}
	})
	t.Run("OpenAPI", func(t *testing.T) {
		http := c.HTTP(c.certificate())
		code, body := c.Ask(t, http, "GET", "/openapi/v3", nil, nil)
		if code != 200 || !strings.Contains(body, `"apis/sea.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/sea.example.com/v1?hash=`) {
			t.Errorf("index of v3: %d\n%s", code, body)
		}
		if code, body = c.Ask(t, http, "GET", "/openapi/v3/apis/sea.example.com/v1", nil, nil); code != 200 || !strings.Contains(body, "/apis/sea.example.com/v1/namespaces/{namespace}/fishes") {
			t.Errorf("v3: %d %.300s", code, body)
		}
		if code, body = c.Ask(t, http, "GET", "/openapi/v2", nil, nil); code != 200 || !strings.Contains(body, "/apis/sea.example.com/v1/namespaces/{namespace}/fishes") || !strings.Contains(body, "/api/v1/pods") {
			t.Errorf("v2: %d, %d bytes without both servers' paths", code, len(body))
		}
	})
	t.Run("gone", func(t *testing.T) {
		c.must(c.registry.ApiregistrationV1().APIServices().Delete(ctx, "v1.sea.example.com", metav1.DeleteOptions{}))
		controltest.Await(t, "fishes are gone", func() bool {
			_, err := admin.List(ctx, metav1.ListOptions{})
			groups, failed := c.core.Discovery().ServerGroups()
			return apierrors.IsNotFound(err) && failed == nil &&
				!slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "sea.example.com" })
		})
	})
}

func TestEveryGroupServedHereHasAnAPIService(t *testing.T) {
	c := newCluster(t)
	ctx := t.Context()
	list, err := c.registry.ApiregistrationV1().APIServices().List(ctx, metav1.ListOptions{})
	c.must(err)
	have := map[string]apiregistrationv1.APIService{}
	for _, s := range list.Items {
		have[s.Name] = s
		if s.Spec.Service != nil || !helper.IsAPIServiceConditionTrue(&s, apiregistrationv1.Available) || s.Labels["kube-aggregator.kubernetes.io/automanaged"] != "onstart" {
			t.Errorf("%s: %v %v %v", s.Name, s.Labels, s.Spec, s.Status)
		}
	}
	groups, err := c.core.Discovery().ServerGroups()
	c.must(err)
	var order []string
	for _, g := range groups.Groups {
		if g.Name != "" {
			order = append(order, g.Name)
		}
		for _, v := range g.Versions {
			if _, ok := have[v.Version+"."+g.Name]; !ok && g.Name != "apiregistration.k8s.io" && g.Name != "metrics.k8s.io" {
				t.Errorf("%s has no APIService", v.GroupVersion)
			}
		}
	}
	upstream := strings.Fields(`apiregistration.k8s.io apps events.k8s.io authentication.k8s.io authorization.k8s.io autoscaling batch
		certificates.k8s.io networking.k8s.io policy rbac.authorization.k8s.io storage.k8s.io admissionregistration.k8s.io apiextensions.k8s.io
		scheduling.k8s.io coordination.k8s.io node.k8s.io discovery.k8s.io resource.k8s.io flowcontrol.apiserver.k8s.io`)
	if !slices.Equal(order, append(upstream, "metrics.k8s.io")) { // which upstream does not serve
		t.Errorf("the order of groups is\n%v\nupstream's\n%v", order, upstream)
	}
	for name, want := range map[string][2]int32{"v1.": {18000, 1}, "v2.autoscaling": {17500, 30}, "v1.apiextensions.k8s.io": {16700, 15}} {
		if s := have[name].Spec; s.GroupPriorityMinimum != want[0] || s.VersionPriority != want[1] {
			t.Errorf("%s: %v", name, s)
		}
	}
	code, body := c.Ask(t, c.HTTP(c.certificate()), "GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps",
		map[string][]string{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}}, nil)
	for _, want := range []string{`"name":"Service"`, `"name":"Available"`, `["v1.apps","Local","True",`} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("the table has no %s: %d %s", want, code, body)
		}
	}
}

// metrics-server's APIService has the name that ours would have: Helm installs no object that is there already.
func TestMetricsServerTakesOverAndGivesBack(t *testing.T) {
	metrics := schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}
	c := seaAs(t, metrics)
	serves := func(resource string) func() bool {
		return func() bool {
			list, err := c.core.Discovery().ServerResourcesForGroupVersion(metrics.String())
			if err != nil || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }) {
				return false
			}
			_, all, err := c.core.Discovery().ServerGroupsAndResources()
			return err == nil && slices.ContainsFunc(all, func(l *metav1.APIResourceList) bool {
				return l.GroupVersion == metrics.String() && slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool { return r.Name == resource })
			})
		}
	}
	list := func() int {
		code, _ := c.Ask(t, c.HTTP(c.certificate()), "GET", "/apis/metrics.k8s.io/v1beta1/nodes", nil, nil)
		return code
	}
	controltest.Await(t, "the installed server answers", serves("fishes"))
	if code := list(); code != 404 {
		t.Errorf("nodes, which the installed server does not have, are answered with %d", code)
	}
	c.must(c.registry.ApiregistrationV1().APIServices().Delete(t.Context(), "v1beta1.metrics.k8s.io", metav1.DeleteOptions{}))
	controltest.Await(t, "this server answers again", serves("nodes"))
	if code := list(); code != 200 {
		t.Errorf("nodes are answered with %d", code)
	}
}

func TestCustomResourcesHaveAPIServicesAsLongAsTheyAreServed(t *testing.T) {
	c := newCluster(t)
	ctx := t.Context()
	definitions := extensionsclient.NewForConfigOrDie(c.AdminConfig()).ApiextensionsV1().CustomResourceDefinitions()
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}
	}
	made, err := definitions.Create(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.ClusterScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Kind: "Boat"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v1beta1", false)},
		},
	}, metav1.CreateOptions{})
	c.must(err)
	there := func(name string, want bool) {
		t.Helper()
		controltest.Await(t, name, func() bool {
			s, err := c.registry.ApiregistrationV1().APIServices().Get(ctx, name, metav1.GetOptions{})
			return want && err == nil && s.Spec.GroupPriorityMinimum == 1000 && s.Spec.VersionPriority == 100 || !want && apierrors.IsNotFound(err)
		})
	}
	there("v1.example.com", true)
	there("v1beta1.example.com", true)
	c.must(c.registry.ApiregistrationV1().APIServices().Delete(ctx, "v1.example.com", metav1.DeleteOptions{}))
	there("v1.example.com", true)
	controltest.Await(t, "only v1 is served", func() bool {
		made, err = definitions.Get(ctx, made.Name, metav1.GetOptions{})
		c.must(err)
		made.Spec.Versions[1].Served = false
		_, err = definitions.Update(ctx, made, metav1.UpdateOptions{})
		return err == nil
	})
	there("v1beta1.example.com", false)
	c.must(definitions.Delete(ctx, made.Name, metav1.DeleteOptions{}))
	there("v1.example.com", false)
}

func TestWhomAggregatedServersBelieveIsKept(t *testing.T) {
	c := newCluster(t)
	ctx := t.Context()
	maps := c.core.CoreV1().ConfigMaps("kube-system")
	whole := func() bool {
		m, err := maps.Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		return err == nil && m.Data["client-ca-file"] == string(c.PKI.CA()) && m.Data["requestheader-client-ca-file"] == string(c.PKI.FrontProxyCA()) &&
			m.Data["requestheader-allowed-names"] == `["front-proxy-client"]` && m.Data["requestheader-username-headers"] == `["X-Remote-User"]` &&
			m.Data["requestheader-uid-headers"] == `["X-Remote-Uid"]` && m.Data["requestheader-group-headers"] == `["X-Remote-Group"]` &&
			m.Data["requestheader-extra-headers-prefix"] == `["X-Remote-Extra-"]`
	}
	controltest.Await(t, "it is written", whole)
	c.must(maps.Delete(ctx, "extension-apiserver-authentication", metav1.DeleteOptions{}))
	controltest.Await(t, "it is written again", whole)
}
