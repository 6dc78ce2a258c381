package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// annNodeID holds the ids that drivers have for this node, as a JSON object by driver.
const annNodeID = "csi.volume.kubernetes.io/nodeid"

// publishDriver puts a driver into the CSINode, and its node id and topology on the Node.
func (n *Node) publishDriver(ctx context.Context, d *driver, info *csipb.NodeGetInfoResponse) error {
	segments := info.GetAccessibleTopology().GetSegments()
	node, err := n.patchNode(ctx, func(node *v1.Node) (map[string]any, error) { return nodePatch(node, d, segments) })
	if err != nil {
		return fmt.Errorf("driver %s: %w", d.name, err)
	}
	entry := storagev1.CSINodeDriver{Name: d.name, NodeID: d.nodeID, TopologyKeys: slices.Sorted(maps.Keys(segments))}
	if most := info.MaxVolumesPerNode; most > 0 {
		count := int32(min(most, int64(1<<31-1)))
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	}
	replace := func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return append(without(drivers, d.name), entry)
	}
	err = n.changeCSINode(ctx, node, replace)
	if !apierrors.IsInvalid(err) {
		return err
	}
	// Of an entry only the limit may change: one that differs more is taken out first.
	if err := n.changeCSINode(ctx, node, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver { return without(drivers, d.name) }); err != nil {
		return err
	}
	return n.changeCSINode(ctx, node, replace)
}

// withdrawDriver undoes publishDriver, but for the topology labels: volumes that exist still need them.
func (n *Node) withdrawDriver(ctx context.Context, name string) error {
	node, err := n.patchNode(ctx, func(node *v1.Node) (map[string]any, error) {
		ids := nodeIDs(node)
		if _, has := ids[name]; !has {
			return nil, nil
		}
		delete(ids, name)
		return idsPatch(ids)
	})
	if err != nil {
		return err
	}
	return n.changeCSINode(ctx, node, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver { return without(drivers, name) })
}

func without(drivers []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	return slices.DeleteFunc(slices.Clone(drivers), func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

func nodeIDs(node *v1.Node) map[string]string {
	ids := map[string]string{}
	_ = json.Unmarshal([]byte(node.Annotations[annNodeID]), &ids) // what is not ours to read is written anew
	return ids
}

// nodePatch is the metadata that a driver adds to the Node; nil when it is there.
func nodePatch(node *v1.Node, d *driver, segments map[string]string) (map[string]any, error) {
	labels := map[string]any{}
	for key, value := range segments {
		have, exists := node.Labels[key]
		if exists && have != value {
			return nil, fmt.Errorf("topology label %s is %q already, and the driver says %q", key, have, value)
		}
		if !exists {
			labels[key] = value
		}
	}
	ids := nodeIDs(node)
	if ids[d.name] == d.nodeID && len(labels) == 0 {
		return nil, nil
	}
	ids[d.name] = d.nodeID
	patch, err := idsPatch(ids)
	if err == nil && len(labels) > 0 {
		patch["labels"] = labels
	}
	return patch, err
}

func idsPatch(ids map[string]string) (map[string]any, error) {
	if len(ids) == 0 {
		return map[string]any{"annotations": map[string]any{annNodeID: nil}}, nil
	}
	text, err := json.Marshal(ids)
	return map[string]any{"annotations": map[string]any{annNodeID: string(text)}}, err
}

// patchNode writes the metadata that change wants, judged on the Node that it is written to, and returns that Node.
func (n *Node) patchNode(ctx context.Context, change func(*v1.Node) (map[string]any, error)) (node *v1.Node, err error) {
	nodes := n.cfg.Client.CoreV1().Nodes()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if node, err = nodes.Get(ctx, n.cfg.NodeName, metav1.GetOptions{}); err != nil {
			return err
		}
		metadata, err := change(node)
		if err != nil || metadata == nil {
			return err
		}
		metadata["resourceVersion"] = node.ResourceVersion
		patch, err := json.Marshal(map[string]any{"metadata": metadata})
		if err != nil {
			return err
		}
		node, err = nodes.Patch(ctx, n.cfg.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	return node, err
}

// changeCSINode writes the drivers that change makes of those that the CSINode has.
func (n *Node) changeCSINode(ctx context.Context, node *v1.Node, change func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver) error {
	nodes := n.cfg.Client.StorageV1().CSINodes()
	return retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }, func() error {
		have, err := nodes.Get(ctx, n.cfg.NodeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			fresh := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.cfg.NodeName, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}}}
			fresh.Spec.Drivers = change([]storagev1.CSINodeDriver{})
			_, err = nodes.Create(ctx, fresh, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		want := have.DeepCopy()
		want.Spec.Drivers = change(have.Spec.Drivers)
		if sameDrivers(have.Spec.Drivers, want.Spec.Drivers) {
			return nil
		}
		_, err = nodes.Update(ctx, want, metav1.UpdateOptions{})
		return err
	})
}

func sameDrivers(a, b []storagev1.CSINodeDriver) bool {
	order := func(x, y storagev1.CSINodeDriver) int {
		if x.Name < y.Name {
			return -1
		}
		return 1
	}
	return apiequality.Semantic.DeepEqual(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order))
}
