package main

import (
	"context"
	"crypto/tls"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// rawCodec is a gRPC codec whose messages are bytes.
type rawCodec struct{}

// Marshal implements encoding.Codec.
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal implements encoding.Codec.
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// Name implements encoding.Codec.
func (rawCodec) Name() string { return "proto" }

// message encodes a protobuf message with fields of text, bytes or integers.
func message(fields ...any) (out []byte) {
	for i := 0; i < len(fields); i += 2 {
		n := protowire.Number(fields[i].(int))
		switch v := fields[i+1].(type) {
		case string:
			out = protowire.AppendString(protowire.AppendTag(out, n, protowire.BytesType), v)
		case []byte:
			out = protowire.AppendBytes(protowire.AppendTag(out, n, protowire.BytesType), v)
		case int:
			out = protowire.AppendVarint(protowire.AppendTag(out, n, protowire.VarintType), uint64(v))
		default:
			panic(fmt.Sprintf("field of type %T", v))
		}
	}
	return out
}

// fieldOf returns the last field with a number that holds text or bytes.
func fieldOf(in []byte, want protowire.Number) (found []byte) {
	for len(in) > 0 {
		n, kind, size := protowire.ConsumeTag(in)
		if size < 0 {
			return nil
		}
		in = in[size:]
		if size = protowire.ConsumeFieldValue(n, kind, in); size < 0 {
			return nil
		}
		if n == want && kind == protowire.BytesType {
			found, _ = protowire.ConsumeBytes(in)
		}
		in = in[size:]
	}
	return found
}

// call calls a method of the cluster's service with a client certificate, and returns the first answer.
func (w *world) call(ctx context.Context, as tls.Certificate, method string, request []byte) (answer []byte, err error) {
	conn, err := w.grpcAs(as)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if len(method) == 0 || method[0] != '/' {
		method = "/balsa.cluster.v1.Cluster/" + method
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(&request); err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	return answer, stream.RecvMsg(&answer)
}
