package dra

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/balsahq/balsa/node/csi"
)

// callTimeout is how long one call to a driver may take, as upstream.
const callTimeout = 45 * time.Second

// services are the versions that are spoken, in no order: the driver names its favourite first.
var services = []string{drapb.DRAPluginService, drapbv1beta1.DRAPluginService}

// endpoint is a connection to one socket of a driver. A driver has two for a while when it is updated.
type endpoint struct {
	driver, path, service string
	conn                  *grpc.ClientConn
	stop                  context.CancelFunc // of its goroutine

	connected bool // guarded by Manager.mu
}

// chooseService returns the first version that both sides speak.
func chooseService(offered []string) (string, error) {
	for _, s := range offered {
		if slices.Contains(services, s) {
			return s, nil
		}
	}
	return "", fmt.Errorf("none of services supported by the plugin (%q) are supported by the kubelet (%q)", offered, services)
}

func dial(driver, path string, offered []string) (*endpoint, error) {
	service, err := chooseService(offered)
	if err != nil {
		return nil, fmt.Errorf("DRA driver %s: %w", driver, err)
	}
	conn, err := csi.Dial(path)
	if err != nil {
		return nil, fmt.Errorf("DRA driver %s: %w", driver, err)
	}
	return &endpoint{driver: driver, path: path, service: service, conn: conn}, nil
}

// follow keeps the connection open until ctx ends, and calls changed when it comes up or breaks: a driver that has crashed is seen so.
func (e *endpoint) follow(ctx context.Context, changed func(connected bool)) {
	for state := e.conn.GetState(); ; state = e.conn.GetState() {
		if state == connectivity.Idle {
			e.conn.Connect()
		}
		changed(state == connectivity.Ready)
		if !e.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

func (e *endpoint) prepare(ctx context.Context, claims []*drapb.Claim) (map[string]*drapb.NodePrepareResourceResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	in, out := &drapb.NodePrepareResourcesRequest{Claims: claims}, &drapb.NodePrepareResourcesResponse{}
	var err error
	if e.service == drapb.DRAPluginService {
		out, err = drapb.NewDRAPluginClient(e.conn).NodePrepareResources(ctx, in)
	} else {
		old := &drapbv1beta1.NodePrepareResourcesRequest{}
		if err := drapbv1beta1.Convert_v1_NodePrepareResourcesRequest_To_v1beta1_NodePrepareResourcesRequest(in, old, nil); err != nil {
			return nil, err
		}
		var answer *drapbv1beta1.NodePrepareResourcesResponse
		if answer, err = drapbv1beta1.NewDRAPluginClient(e.conn).NodePrepareResources(ctx, old); err == nil {
			err = drapbv1beta1.Convert_v1beta1_NodePrepareResourcesResponse_To_v1_NodePrepareResourcesResponse(answer, out, nil)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources: %w", err)
	}
	return out.GetClaims(), nil
}

// unprepare returns the driver's error for each claim, "" for one that is done.
func (e *endpoint) unprepare(ctx context.Context, claims []*drapb.Claim) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	in, out := &drapb.NodeUnprepareResourcesRequest{Claims: claims}, &drapb.NodeUnprepareResourcesResponse{}
	var err error
	if e.service == drapb.DRAPluginService {
		out, err = drapb.NewDRAPluginClient(e.conn).NodeUnprepareResources(ctx, in)
	} else {
		old := &drapbv1beta1.NodeUnprepareResourcesRequest{}
		if err := drapbv1beta1.Convert_v1_NodeUnprepareResourcesRequest_To_v1beta1_NodeUnprepareResourcesRequest(in, old, nil); err != nil {
			return nil, err
		}
		var answer *drapbv1beta1.NodeUnprepareResourcesResponse
		if answer, err = drapbv1beta1.NewDRAPluginClient(e.conn).NodeUnprepareResources(ctx, old); err == nil {
			err = drapbv1beta1.Convert_v1beta1_NodeUnprepareResourcesResponse_To_v1_NodeUnprepareResourcesResponse(answer, out, nil)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("NodeUnprepareResources: %w", err)
	}
	done := map[string]string{}
	for uid, r := range out.GetClaims() {
		done[uid] = r.GetError()
	}
	return done, nil
}
