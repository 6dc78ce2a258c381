package corpus

import (
	"context"
	"fmt"
	"time"
)

// setupObjects are the objects that the others need: their namespace, the service account of pods, and a custom kind.
var setupObjects = []struct{ path, object string }{
	{"/api/v1/namespaces", `{"metadata":{"name":"` + Namespace + `"}}`},
	{"/api/v1/namespaces/" + Namespace + "/serviceaccounts", `{"metadata":{"name":"default"}}`},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{
		"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.corpus.example.com"},
		"spec":{"group":"corpus.example.com","scope":"Namespaced",
			"names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList","shortNames":["wd"],"categories":["all"]},
			"versions":[{"name":"v1","served":true,"storage":true,
				"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}},
				"selectableFields":[{"jsonPath":".spec.color"}],
				"additionalPrinterColumns":[
					{"name":"Color","type":"string","jsonPath":".spec.color","description":"its color"},
					{"name":"Size","type":"integer","jsonPath":".spec.size","priority":1},
					{"name":"Since","type":"date","jsonPath":".spec.since"}],
				"schema":{"openAPIV3Schema":{"type":"object","description":"A thing.","properties":{
					"spec":{"type":"object","required":["color"],"properties":{
						"color":{"type":"string","enum":["red","green"],"description":"its color"},
						"size":{"type":"integer","minimum":1,"maximum":10,"default":3},
						"replicas":{"type":"integer"},"since":{"type":"string","format":"date-time"},
						"ratio":{"type":"number"},"on":{"type":"boolean","default":true},
						"port":{"x-kubernetes-int-or-string":true},"pod":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
						"template":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true},
						"tags":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"set"},
						"parts":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{
							"type":"object","required":["name"],"properties":{"name":{"type":"string"},"count":{"type":"integer","default":1}}}},
						"labels":{"type":"object","additionalProperties":{"type":"string"}},"nothing":{"type":"string","nullable":true}},
						"x-kubernetes-validations":[{"rule":"self.color != 'red' || self.size < 9","message":"nothing so large is red"}]},
					"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"},"phase":{"type":"string"}}}}}}}]}}`},
}

// customPath is the path of the custom kind.
const customPath = "/apis/corpus.example.com/v1/namespaces/" + Namespace + "/widgets"

// Setup creates the objects that the scenarios need on a new server.
func Setup(ctx context.Context, s Server) error {
	for _, n := range setupObjects {
		a, err := s.Ask(ctx, Request{Method: "POST", Path: n.path, ContentType: jsonType, Accept: jsonType, Body: []byte(n.object)})
		if err != nil {
			return err
		}
		if a.Status != 201 && a.Status != 409 {
			return fmt.Errorf("POST %s: %d %s", n.path, a.Status, a.Body)
		}
	}
	limit, look := time.After(watchTimeout), time.NewTicker(50*time.Millisecond)
	defer look.Stop()
	for {
		a, err := s.Ask(ctx, Request{Method: "GET", Path: customPath, Accept: jsonType})
		if err != nil || a.Status == 200 {
			return err
		}
		select {
		case <-look.C:
		case <-limit:
			return fmt.Errorf("GET %s: %d %s", customPath, a.Status, a.Body)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
