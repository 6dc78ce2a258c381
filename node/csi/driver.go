package csi

import (
	"context"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// callTimeout is how long one call to a driver may take, as upstream.
const callTimeout = 2 * time.Minute

type nodeCapability = csipb.NodeServiceCapability_RPC_Type

// driver is one registered driver.
type driver struct {
	name   string
	nodeID string
	conn   *grpc.ClientConn
	node   csipb.NodeClient
	can    map[nodeCapability]bool

	// Guarded by Node.mu.
	asked time.Time // when its limit was last asked for
	full  bool      // a volume did not fit since
}

// openDriver asks the driver behind a socket for what it can do on this node.
func openDriver(ctx context.Context, name, endpoint string) (*driver, *csipb.NodeGetInfoResponse, error) {
	conn, err := Dial(endpoint)
	if err != nil {
		return nil, nil, err
	}
	d := &driver{name: name, conn: conn, node: csipb.NewNodeClient(conn), can: map[nodeCapability]bool{}}
	info, err := d.ask(ctx)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return d, info, nil
}

func (d *driver) ask(ctx context.Context) (*csipb.NodeGetInfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("NodeGetInfo of driver %s: %w", d.name, err)
	}
	if info.NodeId == "" {
		return nil, fmt.Errorf("NodeGetInfo of driver %s: the node id is empty", d.name)
	}
	caps, err := d.node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return nil, fmt.Errorf("NodeGetCapabilities of driver %s: %w", d.name, err)
	}
	for _, c := range caps.Capabilities {
		d.can[c.GetRpc().GetType()] = true
	}
	d.nodeID = info.NodeId
	return info, nil
}
