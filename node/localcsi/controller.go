package localcsi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// defaultSize is the size of a volume for which none is asked.
const defaultSize = 1 << 30

// controller is CSI's controller service.
type controller struct {
	csipb.UnimplementedControllerServer
	*Driver
}

func (c controller) ControllerGetCapabilities(context.Context, *csipb.ControllerGetCapabilitiesRequest) (*csipb.ControllerGetCapabilitiesResponse, error) {
	out := &csipb.ControllerGetCapabilitiesResponse{}
	for _, t := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csipb.ControllerServiceCapability_RPC_GET_CAPACITY,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME, csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

func (c controller) CreateVolume(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if r.Name == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's name is missing")
	}
	if err := usable(r.VolumeCapabilities); err != nil {
		return nil, err
	}
	for name := range r.Parameters {
		return nil, status.Errorf(codes.InvalidArgument, "parameter %q of the StorageClass is not known; %s has none", name, Name)
	}
	if r.VolumeContentSource != nil {
		return nil, status.Error(codes.InvalidArgument, "volumes are not made from snapshots or other volumes")
	}
	if t := r.AccessibilityRequirements; t != nil && !c.reachableFrom(append(t.Requisite, t.Preferred...)) {
		return nil, status.Errorf(codes.ResourceExhausted, "the volume is asked for elsewhere than on node %s", c.cfg.NodeName)
	}
	low, high, err := sizes(r.CapacityRange)
	if err != nil {
		return nil, err
	}
	id, m, err := c.store.create(r.Name, low, high)
	if err != nil {
		return nil, coded(err)
	}
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId: id, CapacityBytes: m.Capacity, AccessibleTopology: []*csipb.Topology{c.topology()},
	}}, nil
}

func (d *Driver) reachableFrom(places []*csipb.Topology) bool {
	return len(places) == 0 || slices.ContainsFunc(places, func(t *csipb.Topology) bool { return t.Segments[TopologyKey] == d.cfg.NodeName })
}

// sizes are the smallest and the largest size that is asked for, in bytes; 0 is no largest.
func sizes(r *csipb.CapacityRange) (low, high int64, err error) {
	low, high = r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case low < 0 || high < 0 || high > 0 && low > high:
		return 0, 0, status.Errorf(codes.OutOfRange, "no volume has at least %d and at most %d bytes", low, high)
	case low == 0 && high > 0:
		low = min(high, defaultSize)
	case low == 0:
		low = defaultSize
	}
	return low, high, nil
}

// usable refuses uses that a directory of one node does not have.
func usable(all []*csipb.VolumeCapability) error {
	if len(all) == 0 {
		return status.Error(codes.InvalidArgument, "the volume's capabilities are missing")
	}
	for _, v := range all {
		if v.GetBlock() != nil {
			return status.Errorf(codes.InvalidArgument, "%s makes directories and no block devices; ask for volumeMode Filesystem", Name)
		}
		if v.GetMount() == nil {
			return status.Error(codes.InvalidArgument, "the volume's access type is missing")
		}
		if fs := v.GetMount().FsType; fs != "" {
			return status.Errorf(codes.InvalidArgument, "file system %q is not made; leave fsType out", fs)
		}
		if _, err := mountFlags(v.GetMount().MountFlags); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		switch v.GetAccessMode().GetMode() {
		case csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		default:
			return status.Errorf(codes.InvalidArgument, "access mode %s: the volume is on one node; ask for ReadWriteOnce or ReadWriteOncePod", v.GetAccessMode().GetMode())
		}
	}
	return nil
}

// coded gives an error of the store the code that CSI has for it.
func coded(err error) error {
	code := codes.Internal
	for is, c := range map[error]codes.Code{
		errNoVolume: codes.NotFound, errNoRoom: codes.ResourceExhausted, errDiffers: codes.AlreadyExists, errSmaller: codes.OutOfRange,
	} {
		if errors.Is(err, is) {
			code = c
		}
	}
	return status.Error(code, err.Error())
}

func (c controller) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's id is missing")
	}
	used, err := c.mountedOn(r.VolumeId)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if len(used) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use: it is mounted on %s", r.VolumeId, used[0])
	}
	if err := c.store.remove(r.VolumeId); err != nil {
		return nil, coded(err)
	}
	return &csipb.DeleteVolumeResponse{}, nil
}

func (c controller) ValidateVolumeCapabilities(_ context.Context, r *csipb.ValidateVolumeCapabilitiesRequest) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	if r.VolumeId == "" || len(r.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the volume's id or capabilities are missing")
	}
	if _, err := c.store.get(r.VolumeId); err != nil {
		return nil, coded(err)
	}
	if err := usable(r.VolumeCapabilities); err != nil {
		return &csipb.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.VolumeContext, VolumeCapabilities: r.VolumeCapabilities, Parameters: r.Parameters,
	}}, nil
}

func (c controller) GetCapacity(_ context.Context, r *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	if t := r.AccessibleTopology; t != nil && !c.reachableFrom([]*csipb.Topology{t}) {
		return &csipb.GetCapacityResponse{}, nil
	}
	if len(r.VolumeCapabilities) > 0 && usable(r.VolumeCapabilities) != nil {
		return &csipb.GetCapacityResponse{}, nil
	}
	free, err := c.store.free()
	if err != nil {
		return nil, coded(err)
	}
	return &csipb.GetCapacityResponse{AvailableCapacity: free}, nil
}

func (c controller) ControllerExpandVolume(_ context.Context, r *csipb.ControllerExpandVolumeRequest) (*csipb.ControllerExpandVolumeResponse, error) {
	if r.VolumeId == "" || r.CapacityRange == nil {
		return nil, status.Error(codes.InvalidArgument, "the volume's id or size is missing")
	}
	low, high, err := sizes(r.CapacityRange)
	if err != nil {
		return nil, err
	}
	size, err := c.store.expand(r.VolumeId, low, high)
	if err != nil {
		return nil, coded(fmt.Errorf("volume %s: %w", r.VolumeId, err))
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: size}, nil
}
