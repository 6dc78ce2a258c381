package cluster_test

import (
	"context"
	"crypto/tls"
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

var seed = flag.Uint64("cluster.seed", 1, "of the random requests")

// rawCodec sends bytes as they are.
type rawCodec struct{}

// Marshal implements encoding.Codec.
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal implements encoding.Codec.
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }

// Name implements encoding.Codec.
func (rawCodec) Name() string { return "proto" }

// randomMessage has some of the fields of its kind, with values that may or may not make sense.
func randomMessage(r *rand.Rand, of protoreflect.MessageDescriptor) proto.Message {
	m := dynamicpb.NewMessage(of)
	texts := []string{"", "s1", "a", "../x", strings.Repeat("x", 5000), "balsa1.s.00112233445566778899aabbccddeeff.a1b2c3d4.00112233445566778899aabbccddeeff", "\\x00", "s", "127.0.0.1:1", "v0.1.0"}
	numbers := []int64{0, 1, -1, 1 << 31, -1 << 63, 1<<63 - 1, 7}
	for i := range of.Fields().Len() {
		f := of.Fields().Get(i)
		if f.IsList() || f.IsMap() || r.IntN(3) == 0 {
			continue
		}
		n := numbers[r.IntN(len(numbers))]
		switch f.Kind() {
		case protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(texts[r.IntN(len(texts))]))
		case protoreflect.BytesKind:
			m.Set(f, protoreflect.ValueOfBytes([]byte(texts[r.IntN(len(texts))])))
		case protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(n > 0))
		case protoreflect.Int64Kind:
			m.Set(f, protoreflect.ValueOfInt64(n))
		case protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(uint64(n)))
		case protoreflect.Int32Kind:
			m.Set(f, protoreflect.ValueOfInt32(int32(n)))
		case protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(uint32(n)))
		case protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(protoreflect.EnumNumber(n)))
		case protoreflect.MessageKind:
			m.Set(f, protoreflect.ValueOfMessage(randomMessage(r, f.Message()).ProtoReflect()))
		}
	}
	return m
}

// TestRandomRequestsBreakNothing calls every method as an administrator, and as nobody, with messages of random content
// and with bytes that are no messages.
func TestRandomRequestsBreakNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(*seed, 1))
	w := newWorld(t)
	s := w.form()
	var conns []*grpc.ClientConn
	for _, cert := range []func(*tls.CertificateRequestInfo) (*tls.Certificate, error){s.pki.Admin().GetClientCertificate, nil} {
		conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: s.pki.Pool(), GetClientCertificate: cert, ServerName: "kubernetes", Time: w.now})),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	methods := clusterpb.File_cluster_proto.Services().ByName("Cluster").Methods()
	answers := map[codes.Code]int{}
	for range 1500 {
		m := methods.Get(r.IntN(methods.Len()))
		if m.Name() == "Leave" || m.Name() == "Remove" {
			continue // it may say yes
		}
		body, err := proto.Marshal(randomMessage(r, m.Input()))
		if err != nil {
			body = nil
		}
		for r.IntN(3) == 0 && len(body) > 0 {
			body[r.IntN(len(body))] ^= 1 << r.IntN(8)
		}
		err = callRaw(t.Context(), conns[r.IntN(2)], m, body)
		answers[status.Code(err)]++
		if status.Code(err) == codes.Unknown {
			t.Errorf("%s(%.200q): an error that is none of gRPC's: %v", m.Name(), body, err)
		}
	}
	t.Log(answers)
	if _, err := w.admin(s).Members(t.Context(), &clusterpb.MembersRequest{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// callRaw makes a call and, of a stream, takes its first answer.
func callRaw(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, body []byte) error {
	limit := 5 * time.Second
	if m.IsStreamingServer() {
		limit = 20 * time.Millisecond // it may have no end
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.IsStreamingServer(), ClientStreams: m.IsStreamingClient()}, name)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&body); err != nil {
		return stream.RecvMsg(&[]byte{})
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(&[]byte{})
}
