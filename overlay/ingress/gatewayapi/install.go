package gatewayapi

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	_ "embed" // of the definitions
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/balsahq/balsa/overlay/ingress/plan"
)

// Class is the name of the GatewayClass that Install makes.
const Class = "balsa"

// Version is the Gateway API release of the embedded definitions.
const Version = "v1.6.3"

//go:embed definitions.tar.gz
var archive []byte

var (
	definitions = schema.GroupVersionResource{Group: apiextensionsv1.GroupName, Version: "v1", Resource: "customresourcedefinitions"}
	classes     = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gatewayclasses"}
)

// Definitions returns the embedded CustomResourceDefinitions.
func Definitions() ([]*unstructured.Unstructured, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("gatewayapi: %w", err)
	}
	var out []*unstructured.Unstructured
	for files := tar.NewReader(unzipped); ; {
		_, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("gatewayapi: %w", err)
		}
		raw, err := io.ReadAll(files)
		if err != nil {
			return nil, fmt.Errorf("gatewayapi: %w", err)
		}
		object, err := decode(raw)
		if err != nil {
			return nil, fmt.Errorf("gatewayapi: %w", err)
		}
		out = append(out, object)
	}
}

func decode(raw []byte) (*unstructured.Unstructured, error) {
	text, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	return u, json.Unmarshal(text, &u.Object)
}

// Install creates the missing definitions and the GatewayClass. It does not change existing ones, because another version
// may have been installed on purpose. It waits until the class can be created or ctx ends.
func Install(ctx context.Context, cfg *rest.Config) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("gatewayapi: %w", err)
	}
	all, err := Definitions()
	if err != nil {
		return err
	}
	for _, d := range all {
		if err := create(ctx, client, definitions, d); err != nil {
			return fmt.Errorf("gatewayapi: %s: %w", d.GetName(), err)
		}
	}
	class := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": map[string]any{"name": Class},
		"spec": map[string]any{"controllerName": plan.GatewayController},
	}}
	again := time.NewTicker(500 * time.Millisecond) // a definition is served a moment after its creation, without an event
	defer again.Stop()
	for {
		err := create(ctx, client, classes, class)
		if !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func create(ctx context.Context, client dynamic.Interface, what schema.GroupVersionResource, o *unstructured.Unstructured) error {
	_, err := client.Resource(what).Get(ctx, o.GetName(), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err = client.Resource(what).Create(ctx, o, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
