package nodesetup

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/healthport"
	"github.com/balsahq/balsa/overlay/speaker"
)

// startLoadBalancers announces addresses of load balancers on this node's LAN, and serves their health checks.
func (a Node) startLoadBalancers(network overlay.Config, state *networkState) error {
	announcer, err := speaker.New(speaker.Config{
		NodeName: a.Config.NodeName, Informers: network.Informers, Publish: a.annotateNode, Confirm: a.confirmNode,
		Inside: slices.Concat(network.PodCIDRs, network.ServiceCIDRs), Logger: a.Logger,
	})
	if err != nil {
		return err
	}
	health, err := healthport.New(healthport.Config{
		NodeName: a.Config.NodeName, Informers: network.Informers, Healthy: func() bool { return state.Ready() == nil },
		NodeAddress: a.Config.Proxy.Healthz, StatusAddress: a.Config.Proxy.Status, Logger: a.Logger,
	})
	if err != nil {
		return err
	}
	for name, run := range map[string]func(context.Context) error{"load balancer addresses": announcer.Run, "load balancer health": health.Run} {
		a.Parts.Start(name, func(ctx context.Context) error {
			if !lifecycle.Await(ctx, a.APIReady) {
				return nil
			}
			return run(ctx)
		})
	}
	return nil
}

// annotateNode sets an annotation of this machine's Node. The value "" removes the annotation.
func (a Node) annotateNode(ctx context.Context, key, value string) error {
	annotations := map[string]any{key: value}
	if value == "" {
		annotations[key] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = a.Client.CoreV1().Nodes().Patch(ctx, a.Config.NodeName, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// confirmNode returns an error unless the API says that this machine's Node is ready.
func (a Node) confirmNode(ctx context.Context) error {
	n, err := a.Client.CoreV1().Nodes().Get(ctx, a.Config.NodeName, metav1.GetOptions{})
	if err == nil && !isReady(n) {
		err = fmt.Errorf("node %s is not ready", n.Name)
	}
	return err
}
