package etcd

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/balsahq/balsa/fault"
)

// generated is a message with generated marshalling code, like all messages of etcd's API. gRPC's own codec would marshal
// such a message twice, once only for its size.
type generated interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
	Unmarshal([]byte) error
}

// codec is gRPC's codec for protocol buffers with a faster path for generated messages. It runs outside gRPC's
// interceptors, so it contains panics itself.
type codec struct{ rest encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Name implements [encoding.CodecV2].
func (codec) Name() string { return proto.Name }

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (data mem.BufferSlice, err error) {
	err = fault.Contain("control/etcd", func() (err error) {
		data, err = c.marshal(v)
		return err
	})
	return data, err
}

func (c codec) marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(generated)
	if !ok {
		return c.rest.Marshal(v)
	}
	size := m.Size()
	if mem.IsBelowBufferPoolingThreshold(size) {
		b := make([]byte, size)
		if _, err := m.MarshalToSizedBuffer(b); err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	pool := mem.DefaultBufferPool()
	b := pool.Get(size)
	if _, err := m.MarshalToSizedBuffer((*b)[:size]); err != nil {
		pool.Put(b)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(b, pool)}, nil
}

// Unmarshal implements [encoding.CodecV2]. The message copies the data that it keeps.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	return fault.Contain("control/etcd", func() error { return c.unmarshal(data, v) })
}

func (c codec) unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(generated)
	if !ok {
		return c.rest.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return m.Unmarshal(b.ReadOnlyData())
}
