package csi

import (
	"context"
	"fmt"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Expand tells the driver that a mounted volume has grown to size, which makes the file system as large.
func (n *Node) Expand(ctx context.Context, r Request, size resource.Quantity) error {
	m, err := n.resolve(ctx, r)
	if err != nil {
		return err
	}
	unlock, err := n.locks.lock(ctx, m.record.key())
	if err != nil {
		return err
	}
	defer unlock()
	staging := ""
	if m.d.can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		staging = filepath.Join(n.stagingDir(m.source.Driver, m.source.VolumeHandle), "globalmount")
	}
	secrets, err := n.secrets(ctx, m.source.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = m.d.node.NodeExpandVolume(ctx, &csipb.NodeExpandVolumeRequest{
		VolumeId: m.source.VolumeHandle, VolumePath: m.record.Target, StagingTargetPath: staging, VolumeCapability: m.capability,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()}, Secrets: secrets,
	})
	if err != nil {
		return fmt.Errorf("NodeExpandVolume: %w", err)
	}
	return nil
}

// Usage is what a driver says of a mounted volume; a number below 0 is not known.
type Usage struct {
	Capacity, Used, Available       int64 // bytes
	Inodes, InodesUsed, InodesAvail int64
}

// Usage asks the driver about a volume of a pod. ok is false when the driver does not tell.
func (n *Node) Usage(ctx context.Context, pod *v1.Pod, volume string) (u Usage, ok bool, err error) {
	r, err := readRecord(filepath.Join(n.podVolumesDir(pod.UID), volume))
	if err != nil {
		return u, false, err
	}
	d, err := n.driver(r.Driver)
	if err != nil || !d.can[csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return u, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := d.node.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: r.Handle, VolumePath: r.Target})
	if err != nil {
		return u, false, fmt.Errorf("NodeGetVolumeStats: %w", err)
	}
	u = Usage{Capacity: -1, Used: -1, Available: -1, Inodes: -1, InodesUsed: -1, InodesAvail: -1}
	for _, x := range got.Usage {
		switch x.Unit {
		case csipb.VolumeUsage_BYTES:
			u.Capacity, u.Used, u.Available = x.Total, x.Used, x.Available
		case csipb.VolumeUsage_INODES:
			u.Inodes, u.InodesUsed, u.InodesAvail = x.Total, x.Used, x.Available
		}
	}
	return u, true, nil
}
