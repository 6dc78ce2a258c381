package cri

import (
	"context"
	"fmt"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	criclient "k8s.io/cri-client/pkg"
)

// callTimeout bounds every call to the runtime except pulls and stops.
const callTimeout = 2 * time.Minute

// Dial connects to the runtime and its image service at endpoint, such as "unix:///run/balsa/containerd.sock". It returns
// before the runtime has answered anything.
func Dial(ctx context.Context, endpoint string) (criapi.RuntimeService, criapi.ImageManagerService, error) {
	rt, err := criclient.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).
		WithConnectionTimeout(callTimeout).WithTracerProvider(nil).Build(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to runtime: %w", err)
	}
	im, err := criclient.NewRemoteImageServiceBuilder().WithEndpoint(endpoint).
		WithConnectionTimeout(callTimeout).WithTracerProvider(nil).Build(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to image service: %w", err)
	}
	return rt, im, nil
}
