package rest

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/utils/ptr"
)

// Log serves pods/log: it streams the log from the kubelet.
type Log struct {
	pods  *genericregistry.Store
	reach *nodeTransports
}

var (
	_ rest.GetterWithOptions = (*Log)(nil)
	_ rest.StorageMetadata   = (*Log)(nil)
)

// New implements rest.Storage.
func (l *Log) New() runtime.Object { return &api.Pod{} }

// Destroy implements rest.Storage.
func (l *Log) Destroy() {}

// ProducesMIMETypes returns the type of logs: text.
func (l *Log) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject tells discovery that the answer is a string and not an object.
func (l *Log) ProducesObject(string) any { return "" }

// NewGetOptions implements rest.GetterWithOptions.
func (l *Log) NewGetOptions() (runtime.Object, bool, string) { return &api.PodLogOptions{}, false, "" }

// OverrideMetricsVerb counts log streams as CONNECT, because they last long.
func (l *Log) OverrideMetricsVerb(verb string) string {
	if verb == "GET" {
		return "CONNECT"
	}
	return verb
}

// Get returns an object that streams the log when it is written to the response.
func (l *Log) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*api.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	split := utilfeature.DefaultFeatureGate.Enabled(features.PodLogsQuerySplitStreams)
	if split && o.Stream == nil {
		o.Stream = ptr.To(api.LogStreamAll)
	}
	if errs := validation.ValidatePodLogOptions(o, split); len(errs) > 0 {
		return nil, apierrors.NewInvalid(api.Kind("PodLogOptions"), name, errs)
	}
	location, transport, err := pod.LogLocation(ctx, l.pods, l.reach, name, o)
	if err != nil {
		return nil, err
	}
	return &genericrest.LocationStreamer{
		Location: location, Transport: transport, ContentType: "text/plain", Flush: o.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(api.Resource("pods/log"), name),
		RedirectChecker: genericrest.PreventRedirects,
	}, nil
}
