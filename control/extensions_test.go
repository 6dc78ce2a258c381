package control_test

import (
	"encoding/json"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
)

var crontabs = schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}

func cronTabDefinition() *apiextensionsv1.CustomResourceDefinition {
	property := func(kind string) apiextensionsv1.JSONSchemaProps { return apiextensionsv1.JSONSchemaProps{Type: kind} }
	replicas := property("integer")
	replicas.Minimum = ptr.To(1.0)
	replicas.Description = "how many to run"
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "crontabs.stable.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: crontabs.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "crontabs", Singular: "crontab", Kind: "CronTab", ShortNames: []string{"ct"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
					{Name: "Spec", Type: "string", JSONPath: ".spec.cronSpec"},
				},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"cronSpec": property("string"), "replicas": replicas,
						}},
						"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"done": property("boolean")}},
					},
				}},
			}},
		},
	}
}

func cronTab(name string, replicas int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"cronSpec": "* * * * */5", "replicas": replicas},
	}}
}

func TestCustomResourcesLiveAndDieWithTheirDefinition(t *testing.T) {
	ctx, ns := testContext(t), namespace(t)
	crds := extensionsclient.NewForConfigOrDie(shared.admin()).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := crds.Create(ctx, cronTabDefinition(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(shared.admin()).Resource(crontabs).Namespace(ns)
	settles(t, "custom resource is served", func() bool {
		_, err := client.List(ctx, metav1.ListOptions{})
		return err == nil
	})
	w, err := client.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := client.Create(ctx, cronTab("a", 2), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added {
		t.Errorf("event is %v", e)
	}
	if _, err := client.Create(ctx, cronTab("b", 0), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "greater than or equal to 1") {
		t.Errorf("object against its schema: %v", err)
	}
	if _, err := client.Apply(ctx, "a", cronTab("a", 3), metav1.ApplyOptions{FieldManager: "me", Force: true}); err != nil {
		t.Errorf("server-side apply: %v", err)
	}
	customResourceIsDocumented(t)

	code, _, body := raw(t, "GET", "/apis/stable.example.com/v1/namespaces/"+ns+"/crontabs", "", "application/json;as=Table;v=v1;g=meta.k8s.io", "")
	var table metav1.Table
	if err := json.Unmarshal([]byte(body), &table); err != nil || code != 200 || len(table.Rows) != 1 || table.Rows[0].Cells[1] != "* * * * */5" {
		t.Errorf("table: %d %v %s", code, err, body)
	}
	if err := crds.Delete(ctx, cronTabDefinition().Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	settles(t, "definition is gone with its objects", func() bool {
		_, err := crds.Get(ctx, cronTabDefinition().Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	settles(t, "the kind is not served any more", func() bool { // the handler learns of it by a watch
		_, err := client.List(ctx, metav1.ListOptions{})
		return apierrors.IsNotFound(err)
	})
	prefix := "/registry/stable.example.com/"
	if n := shared.store.View().Count(prefix, "/registry/stable.example.com0"); n != 0 {
		t.Errorf("%d objects are left in the store", n)
	}
}

func customResourceIsDocumented(t *testing.T) {
	t.Helper()
	settles(t, "both kinds of discovery show the group", func() bool {
		for _, accept := range []string{"application/json", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"} {
			if _, _, body := raw(t, "GET", "/apis", "", accept, ""); !strings.Contains(body, "stable.example.com") {
				return false
			}
		}
		return true
	})
	settles(t, "v3 explains the custom resource", func() bool {
		paths, err := discovery.NewDiscoveryClientForConfigOrDie(shared.admin()).OpenAPIV3().Paths()
		if err != nil || paths["apis/stable.example.com/v1"] == nil {
			return false
		}
		text, err := paths["apis/stable.example.com/v1"].Schema("application/json")
		return err == nil && strings.Contains(string(text), "how many to run")
	})
	settles(t, "v2 defines the custom resource", func() bool {
		v2, err := discovery.NewDiscoveryClientForConfigOrDie(shared.admin()).OpenAPISchema()
		return err == nil && definesModel(v2, "com.example.stable.v1.CronTab")
	})
}
