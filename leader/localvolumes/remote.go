package localvolumes

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// callTimeout is how long a node may take for one call. A volume with many files takes long to remove: the removal goes
// on where it was with the next call.
const callTimeout = 30 * time.Second

// answer is what a node answers a forwarded call with.
type answer struct {
	Code     uint32 `json:"code"`
	Message  string `json:"message"`
	Response []byte `json:"response"`
}

// call calls the driver's controller service on a node. The error has a code of gRPC: Unavailable when the node could
// not be asked.
func (c *controller) call(ctx context.Context, node, method string, in, out proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := proto.Marshal(in)
	if err != nil {
		return err
	}
	raw, err := c.post(ctx, node, method, body)
	if err != nil {
		return status.Errorf(codes.Unavailable, "node %s cannot be asked: %v", node, err)
	}
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return status.Errorf(codes.Unavailable, "node %s answers what cannot be read: %v", node, err)
	}
	if a.Code != 0 {
		return status.Error(codes.Code(a.Code), fmt.Sprintf("node %s: %s", node, a.Message))
	}
	return proto.Unmarshal(a.Response, out)
}
