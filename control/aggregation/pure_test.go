package aggregation

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/balsahq/balsa/control/kinds"
)

func TestEveryGroupOfTheTableHasAPriority(t *testing.T) {
	for _, g := range kinds.Groups {
		if g.Name == apiregistrationv1.GroupName || g.Name == "metrics.k8s.io" { // they have no APIService
			continue
		}
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v}
			if p, ok := priorities[gv]; !ok || int(p.group) != g.Priority {
				t.Errorf("%s: %v here, %d in the table of kinds", gv, p, g.Priority)
			}
		}
	}
}

func TestGroupsStandInTheOrderOfTheirAPIServices(t *testing.T) {
	served := []metav1.APIGroup{{Name: "apps"}, {Name: "new.example.com"}, {Name: apiregistrationv1.GroupName}, {Name: "a.example.com"}}
	service := func(group, version string, p priority) *apiregistrationv1.APIService {
		return apiService(schema.GroupVersion{Group: group, Version: version}, p)
	}
	got := order(served, []*apiregistrationv1.APIService{
		service("a.example.com", "v1", customPriority), service("a.example.com", "v2beta1", customPriority), service("apps", "v1", priority{17800, 15}),
		service("", "v1", priority{18000, 1}), service("high.example.com", "v1", priority{19000, 1}),
	})
	var names []string
	for _, g := range got {
		names = append(names, g.Name)
	}
	if want := []string{apiregistrationv1.GroupName, "high.example.com", "apps", "a.example.com", "new.example.com"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	if v := got[3].Versions; len(v) != 2 || v[0].Version != "v1" || got[3].PreferredVersion.GroupVersion != "a.example.com/v1" {
		t.Errorf("versions: %v", got[3])
	}
}

func TestTrustIsAddedToWhatIsThere(t *testing.T) {
	one, _, err := cert.GenerateSelfSignedCertKey("one", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := cert.GenerateSelfSignedCertKey("two", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	trust := Trust{ClientCA: func() []byte { return two }, ProxyCA: two, ProxyNames: []string{"front-proxy-client"}}
	data, err := trust.merge(map[string]string{"client-ca-file": string(one), "requestheader-allowed-names": `["other"]`, "requestheader-group-headers": "no JSON", "own": "kept"})
	if err != nil {
		t.Fatal(err)
	}
	if got := data["client-ca-file"]; !strings.HasPrefix(got, string(one)) || !strings.Contains(got, string(two)) {
		t.Errorf("authorities: %s", got)
	}
	var names []string
	if err := json.Unmarshal([]byte(data["requestheader-allowed-names"]), &names); err != nil || !slices.Equal(names, []string{"other", "front-proxy-client"}) {
		t.Errorf("names: %v %v", names, err)
	}
	if data["own"] != "kept" || !json.Valid([]byte(data["requestheader-group-headers"])) {
		t.Errorf("%v", data)
	}
	again, err := trust.merge(data)
	if err != nil || again["client-ca-file"] != data["client-ca-file"] {
		t.Errorf("merging twice adds: %v", err)
	}
	retired, err := cert.ParseCertsPEM(one)
	if err != nil {
		t.Fatal(err)
	}
	trust.Retired = func() []*x509.Certificate { return retired }
	if data, err = trust.merge(data); err != nil || data["client-ca-file"] != string(two) {
		t.Errorf("a retired authority stays: %v\n%s", err, data["client-ca-file"])
	}
}

type deleter struct {
	apiregistrationclient.APIServiceInterface
	deleted []string
}

func (d *deleter) APIServices() apiregistrationclient.APIServiceInterface { return d }

func (d *deleter) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	d.deleted = append(d.deleted, name)
	return nil
}

func TestAnAPIServiceWhoseDefinitionIsNewsIsNotDeleted(t *testing.T) {
	definition := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "example.com", Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true}, {Name: "v2"}},
	}}
	d, down := &deleter{}, error(nil)
	client := lateDefinitionGuard{d, func(context.Context) ([]*apiextensionsv1.CustomResourceDefinition, error) {
		return []*apiextensionsv1.CustomResourceDefinition{definition}, down
	}}.APIServices()
	if err := client.Delete(t.Context(), "v1.example.com", metav1.DeleteOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("one that is served: %v", err)
	}
	if err := client.Delete(t.Context(), "v2.example.com", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	down = errors.New("down")
	if err := client.Delete(t.Context(), "v3.example.com", metav1.DeleteOptions{}); !errors.Is(err, down) {
		t.Errorf("nobody knows: %v", err)
	}
	if !slices.Equal(d.deleted, []string{"v2.example.com"}) {
		t.Errorf("deleted: %v", d.deleted)
	}
}
