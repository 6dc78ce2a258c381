package etcd

import (
	"errors"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/balsahq/balsa/fault"
)

// broken is a message whose generated code panics.
type broken struct{}

func (broken) Size() int                                { panic("a size nobody expected") }
func (broken) MarshalToSizedBuffer([]byte) (int, error) { panic("a message nobody expected") }
func (broken) Unmarshal([]byte) error                   { panic("bytes nobody expected") }

// TestAPanicOfTheCodecIsAnError: gRPC calls it outside its interceptors, where a panic would end the process.
func TestAPanicOfTheCodecIsAnError(t *testing.T) {
	if _, err := newCodec().Marshal(broken{}); !errors.Is(err, fault.ErrPanic) {
		t.Errorf("Marshal: %v", err)
	}
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer("x")}, broken{}); !errors.Is(err, fault.ErrPanic) {
		t.Errorf("Unmarshal: %v", err)
	}
}
