package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

// TestWhoMayCallWhat: a client without a certificate may join and nothing else, and each service that the port has is in the
// table.
func TestWhoMayCallWhat(t *testing.T) {
	certificate := func(name, org string) []*x509.Certificate {
		return []*x509.Certificate{{Subject: pkix.Name{CommonName: name, Organization: []string{org}}}}
	}
	callers := map[callerKind][]*x509.Certificate{
		anonymousCaller: nil, nodeCaller: certificate("system:node:n", "system:nodes"), adminCaller: certificate("admin", "system:masters"),
		serverCaller: certificate("balsa:server:"+strings.Repeat("0", 32), "balsa:servers"), clientCaller: certificate("backup", "balsa:etcd-clients"),
	}
	server := grpc.NewServer()
	clusterpb.RegisterClusterServer(server, clusterpb.UnimplementedClusterServer{})
	pb.RegisterKVServer(server, &pb.UnimplementedKVServer{})
	pb.RegisterWatchServer(server, &pb.UnimplementedWatchServer{})
	pb.RegisterLeaseServer(server, &pb.UnimplementedLeaseServer{})
	pb.RegisterMaintenanceServer(server, &pb.UnimplementedMaintenanceServer{})
	pb.RegisterClusterServer(server, &pb.UnimplementedClusterServer{})
	pb.RegisterAuthServer(server, &pb.UnimplementedAuthServer{})
	var methods []string
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			methods = append(methods, "/"+service+"/"+m.Name)
		}
	}
	of := map[string]callerKind{
		"Join": anonymousCaller | clientCaller | members, "Renew": nodeCaller, "ConfirmKeys": nodeCaller, "Leave": members, "Servers": members, "Members": members,
		"Status": members, "Events": members,
	}
	for _, method := range append(methods, "/unknown.Service/Method", "nonsense", "") {
		want := callerKind(0)
		switch name := method[strings.LastIndexByte(method, '/')+1:]; {
		case strings.HasPrefix(method, "/etcdserverpb."):
			want = adminCaller | clientCaller
		case strings.HasPrefix(method, "/balsa."):
			if want = of[name]; want == 0 {
				want = managers
			}
		}
		for k, chain := range callers {
			info := credentials.TLSInfo{}
			if chain != nil {
				info.State = tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{chain}}
			}
			ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info}))
			_, err := (&Service{}).Tap(ctx, &tap.Info{FullMethodName: method})
			cancel()
			if ok := want&k != 0; ok != (err == nil) {
				t.Errorf("%s by a caller of kind %d: %v", method, k, err)
			}
			if code := status.Code(err); err != nil && (code == codes.Unauthenticated) != (k == anonymousCaller) {
				t.Errorf("%s by a caller of kind %d: %v", method, k, err)
			}
		}
	}
}

// joins answers every Join.
type joins struct {
	clusterpb.UnimplementedClusterServer
	s *Service
}

func (j joins) Join(ctx context.Context, _ *clusterpb.JoinRequest) (*clusterpb.JoinResponse, error) {
	j.s.streams.markReceived(ctx)
	return &clusterpb.JoinResponse{ClusterId: "here"}, nil
}

// TestHalfOpenStreamsKeepNobodyOut: 10,000 calls of Join whose message does not come hold few streams, and other machines,
// and others of the same address, join meanwhile.
func TestHalfOpenStreamsKeepNobodyOut(t *testing.T) {
	s := &Service{}
	server := grpc.NewServer(grpc.InTapHandle(s.Tap), grpc.MaxConcurrentStreams(1000))
	clusterpb.RegisterClusterServer(server, joins{s: s})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })

	for range 10 {
		halfOpen(t, listener.Addr().String(), 1000)
	}
	s.streams.mu.Lock()
	n := s.streams.strangers.Len()
	s.streams.mu.Unlock()
	if n != strangerStreams {
		t.Errorf("%d streams are held, want %d", n, strangerStreams)
	}
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 2 * strangerStreams { // what has been answered holds no place
			if _, err := clusterpb.NewClusterClient(conn).Join(t.Context(), &clusterpb.JoinRequest{}); err != nil {
				t.Errorf("from %s: %v", from, err)
			}
		}
		_, err = clusterpb.NewClusterClient(conn).Members(t.Context(), &clusterpb.MembersRequest{})
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("a stranger lists members: %v", err)
		}
	}
}

// halfOpen begins n streams on a connection and waits until the server has seen all of them.
func halfOpen(t *testing.T, addr string, n int) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	_ = f.WriteSettings()
	var head bytes.Buffer
	h := hpack.NewEncoder(&head)
	for i := range n {
		head.Reset()
		for _, field := range [][2]string{
			{":method", "POST"}, {":path", clusterpb.Cluster_Join_FullMethodName}, {":scheme", "http"}, {":authority", "x"},
			{"content-type", "application/grpc"}, {"te", "trailers"},
		} {
			_ = h.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // into memory: cannot fail
		}
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: head.Bytes(), EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.WritePing(false, [8]byte{1}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := frame.(*http2.PingFrame); ok && p.IsAck() && p.Data == [8]byte{1} {
			return
		}
	}
}

// TestTheOldestCallWithoutMessageGivesWay, of its address; one whose message has come does not.
func TestTheOldestCallWithoutMessageGivesWay(t *testing.T) {
	var s streams
	enter := func(from string) (context.Context, error) {
		return s.enter(t.Context(), caller{kind: anonymousCaller, from: netip.MustParseAddr(from)}, clusterpb.Cluster_Join_FullMethodName)
	}
	var open []context.Context
	for range strangerStreams {
		ctx, err := enter("192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, ctx)
	}
	s.markReceived(open[0])
	if _, err := enter("192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	<-open[1].Done()
	for i, ctx := range open {
		if (ctx.Err() != nil) != (i == 1) {
			t.Errorf("stream %d: %v", i, ctx.Err())
		}
		s.markReceived(ctx)
	}
	if _, err := enter("192.0.2.1"); err != nil { // the last of them gives way
		t.Error(err)
	}
	other, err := enter("192.0.2.2")
	if err != nil || other.Err() != nil {
		t.Error(err)
	}
	node := caller{kind: nodeCaller, id: "n"}
	for i := range nodeStreams + 1 {
		_, err := s.enter(t.Context(), node, clusterpb.Cluster_Events_FullMethodName)
		if refused := status.Code(err) == codes.ResourceExhausted; refused != (i == nodeStreams) {
			t.Errorf("call %d of a node: %v", i, err)
		}
	}
}

// TestStrangersOverHTTPMayJoinOnly: a client that offers http/1.1 too comes by another server, and gets no further.
func TestStrangersOverHTTPMayJoinOnly(t *testing.T) {
	s := &Service{}
	h := s.TapHTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for method, code := range map[string]int{clusterpb.Cluster_Join_FullMethodName: http.StatusTeapot, clusterpb.Cluster_Members_FullMethodName: http.StatusOK} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, method, nil))
		if w.Code != code || (w.Header().Get("Grpc-Status") == "16") != (code == http.StatusOK) {
			t.Errorf("%s: %d %v", method, w.Code, w.Header())
		}
	}
}
