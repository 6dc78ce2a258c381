package localcsi

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/node/csi"
)

// forwarded are the calls of CSI's controller service that the cluster's provisioner makes.
var forwarded = []string{"CreateVolume", "DeleteVolume", "ControllerExpandVolume", "GetCapacity"}

// answer is what a forwarded call is answered with. Response is the call's answer as protobuf; Code is gRPC's.
type answer struct {
	Code     uint32 `json:"code"`
	Message  string `json:"message,omitempty"`
	Response []byte `json:"response,omitempty"`
}

// Forward returns a handler that passes calls of the controller service on to the driver of the node with this root
// directory: POST …/{call} with the request as protobuf. Whoever may use it may have volumes removed.
func Forward(rootDir string) (http.Handler, error) {
	conn, err := csi.Dial(socketPath(rootDir))
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := r.PathValue("call")
		if !slices.Contains(forwarded, call) {
			http.Error(w, "unknown call "+call, http.StatusNotFound)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var a answer
		if err := conn.Invoke(r.Context(), "/csi.v1.Controller/"+call, body, &a.Response, grpc.ForceCodec(raw{})); err != nil {
			s := status.Convert(err)
			a = answer{Code: uint32(s.Code()), Message: s.Message()}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a) // the client is gone: it asks again
	}), nil
}

// raw carries messages that are encoded already.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}

func (raw) Name() string { return "proto" }
