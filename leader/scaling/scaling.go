// Package scaling reads and writes the scale of any kind that has one, by the kind's name.
//
// It owns the mapping of kinds to resources, which it learns from discovery when it is first asked and again when it meets
// a kind it does not know. It starts no goroutine; the mapping has its own lock.
package scaling

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
)

// Client reads and writes scales.
type Client struct {
	mapper *restmapper.DeferredDiscoveryRESTMapper
	scales scale.ScalesGetter
}

// New returns a client that acts as the configuration's user.
func New(c *rest.Config) (*Client, error) {
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("scale client: %w", err)
	}
	cached := memory.NewMemCacheClient(d)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	scales, err := scale.NewForConfig(c, mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(cached))
	if err != nil {
		return nil, fmt.Errorf("scale client: %w", err)
	}
	return &Client{mapper: mapper, scales: scales}, nil
}

// Mapper knows which resource a kind is, as far as discovery said so last.
func (c *Client) Mapper() meta.RESTMapper { return c.mapper }

// Get reads the scale of an object. The resource it returns is what Update takes.
func (c *Client) Get(ctx context.Context, namespace, apiVersion, kind, name string) (*autoscalingv1.Scale, schema.GroupResource, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, schema.GroupResource{}, err
	}
	mapping, err := c.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: kind}, gv.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset()
		mapping, err = c.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: kind})
	}
	if err != nil {
		return nil, schema.GroupResource{}, err
	}
	r := mapping.Resource.GroupResource()
	s, err := c.scales.Scales(namespace).Get(ctx, r, name, metav1.GetOptions{})
	return s, r, err
}

// Update writes a scale that Get returned.
func (c *Client) Update(ctx context.Context, r schema.GroupResource, s *autoscalingv1.Scale) error {
	_, err := c.scales.Scales(s.Namespace).Update(ctx, r, s, metav1.UpdateOptions{})
	return err
}
