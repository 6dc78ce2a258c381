package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// attacks returns all attacks.
func (w *world) attacks() []attack {
	all := append(w.apiAttacks(), w.certificateAttacks()...)
	all = append(all, w.clusterAttacks()...)
	all = append(all, w.peerAttacks()...)
	all = append(all, w.nodeWireAttacks()...)
	return append(all, w.gossipAttacks()...)
}

func cutPort(address string) (host, port string, err error) { return net.SplitHostPort(address) }

// clusterAttacks are calls of the cluster's service and of etcd's API.
func (w *world) clusterAttacks() []attack {
	call := func(as tls.Certificate, method string, request []byte) func(context.Context) error {
		return func(ctx context.Context) error { _, err := w.call(ctx, as, method, request); return err }
	}
	// allowed returns nil if a call is not refused because of its client; its object may be missing.
	allowed := func(method string, request []byte) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.call(ctx, w.adminPair, method, request)
			if c := status.Code(err); c == codes.PermissionDenied || c == codes.Unauthenticated {
				return err
			}
			return nil
		}
	}
	var list []attack
	for _, c := range []struct {
		name, method string
		request      []byte
	}{
		{"removal of another member", "Remove", message(1, w.victim, 2, 1)},
		{"a token to join with", "CreateToken", message(1, 1)},
		{"list of tokens", "ListTokens", nil},
		{"snapshot of the whole state", "SnapshotSave", nil},
		{"keys of gossip", "GossipKeys", nil},
		{"rotation of the gossip key", "RotateGossipKey", nil},
		{"a vote for a learner", "Promote", message(1, "nobody", 2, 1)},
		{"a voter's vote", "Demote", message(1, "nobody")},
		{"the leadership elsewhere", "Transfer", message(1, "nobody")},
		{"a server's progress", "Stats", nil},
		{"verdicts on other nodes", "Hears", message(1, w.victim)},
	} {
		control := allowed(c.method, c.request)
		if c.method == "Remove" {
			control = allowed(c.method, message(1, "nobody"))
		}
		list = append(list, attack{c.name, call(w.evilPair, c.method, c.request), control})
	}
	const etcdRange = "/etcdserverpb.KV/Range"
	everything := message(1, []byte{0}, 2, []byte{0})
	return append(list,
		attack{"etcd API", call(w.evilPair, etcdRange, everything), call(w.adminPair, etcdRange, everything)},
		attack{"cluster service with the identity that reads Services", call(w.proxyPair, "Members", nil), call(w.evilPair, "Members", nil)},
		attack{"a certificate that the agent signed itself", func(ctx context.Context) error {
			pair, err := w.forged()
			if err != nil {
				return fmt.Errorf("forge: %v", err)
			}
			_, err = w.call(ctx, pair, "Members", nil)
			if err != nil && status.Code(err) == codes.Unavailable { // the handshake itself fails
				return fmt.Errorf("%w: %v", errRefused, err)
			}
			return err
		}, call(w.evilPair, "Members", nil)},
		attack{"the API with a certificate that the agent signed itself", func(ctx context.Context) error {
			pair, err := w.forged()
			if err != nil {
				return fmt.Errorf("forge: %v", err)
			}
			client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://" + w.server, Transport: &http.Transport{TLSClientConfig: w.tlsAs(pair)}})
			if err != nil {
				return fmt.Errorf("client: %v", err)
			}
			_, err = client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
			return err
		}, func(ctx context.Context) error {
			_, err := w.admin.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
			return err
		}},
	)
}

// forged returns an administrator's certificate that the agent's own key has signed, as if it were a CA's.
func (w *world) forged() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	parent, err := x509.ParseCertificate(w.evilPair.Certificate[0])
	if err != nil {
		return tls.Certificate{}, err
	}
	subject := nodeNamed(w.victim)
	subject.Organization = append(subject.Organization, "system:masters", "balsa:servers")
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(7), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, parent, key.Public(), w.evilPair.PrivateKey)
	return tls.Certificate{Certificate: [][]byte{der, w.evilPair.Certificate[0]}, PrivateKey: key}, err
}

// silence is how long a server that has accepted a connection waits for the client's first bytes, at least.
const silence = 1500 * time.Millisecond

// open opens a connection of a protocol and returns the first byte that the server sends. io.EOF and TLS errors are
// refusals. A server that sends nothing for silence waits for the client, which has been accepted.
func (w *world) open(as tls.Certificate, protocol string, say []byte) (first byte, err error) {
	config := w.tlsAs(as, protocol)
	config.InsecureSkipVerify = true // the servers' certificates among themselves have no address
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", w.server, config)
	if err != nil {
		return 0, fmt.Errorf("%w: %v", errRefused, err)
	}
	defer c.Close()
	if got := c.ConnectionState().NegotiatedProtocol; got != protocol {
		return 0, fmt.Errorf("%w: the server speaks %q", errRefused, got)
	}
	if len(say) > 0 {
		if _, err := c.Write(say); err != nil {
			return 0, fmt.Errorf("%w: %v", errRefused, err)
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(silence))
	answer := make([]byte, 1)
	if _, err := io.ReadFull(c, answer); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, nil
		}
		return 0, fmt.Errorf("%w: %v", errRefused, err)
	}
	return answer[0], nil
}

// peerAttacks are attacks on the servers' protocols among themselves: Raft's entries, forwarded writes, snapshots.
func (w *world) peerAttacks() []attack {
	peer := filepath.Join(w.serverDir, "tls", "peer.pem")
	pair, bad := tls.LoadX509KeyPair(peer, peer)
	id := ""
	if bad == nil {
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if bad = err; err == nil {
			id = strings.TrimPrefix(leaf.Subject.CommonName, "balsa:server:")
		}
	}
	opened := func(as tls.Certificate, protocol string) func(context.Context) error {
		return func(context.Context) error { return errors.Join(bad, w.greet(as, protocol, id)) }
	}
	control := func(protocol string) func(context.Context) error { return opened(pair, protocol) }
	return []attack{
		{"Raft with the agent's certificate", opened(w.evilPair, "balsa-raft/1"), control("balsa-raft/1")},
		{"forwarded writes with the agent's certificate", opened(w.evilPair, "balsa-peer/1"), control("balsa-peer/1")},
		{"Raft with the identity that reads Services", opened(w.proxyPair, "balsa-raft/1"), control("balsa-raft/1")},
	}
}

// greet sends a server's hello with any certificate, and returns nil if the server accepts it.
func (w *world) greet(as tls.Certificate, protocol, serverID string) error {
	config := w.tlsAs(as, protocol)
	config.InsecureSkipVerify = true // the servers' certificates among themselves have no address
	c, err := tls.Dial("tcp", w.server, config)
	if err != nil {
		return fmt.Errorf("%w: %v", errRefused, err)
	}
	defer c.Close()
	hello := []byte{0, 0, 1, 1, 1} // length, version, oldest version, generation
	for _, s := range []string{w.clusterID, serverID} {
		hello = append(append(hello, byte(len(s))), s...)
	}
	hello = append(hello, 0) // welcome
	binary.BigEndian.PutUint16(hello, uint16(len(hello)-2))
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write(hello); err != nil {
		return fmt.Errorf("%w: %v", errRefused, err)
	}
	answer := make([]byte, len(hello))
	if _, err := io.ReadFull(c, answer); err != nil {
		return fmt.Errorf("%w: %v", errRefused, err)
	}
	if verdict := answer[len(answer)-1]; verdict != 0 {
		return fmt.Errorf("%w: verdict %d on this hello", errRefused, verdict)
	}
	return nil
}

// Kinds of frames on a node's connection to a server.
const (
	frameHello byte = 1
	frameOpen  byte = 3
	framePong  byte = 11
)

func frame(kind byte, stream uint32, payload string) []byte {
	out := []byte{kind, byte(len(payload) >> 8), byte(len(payload))}
	return append(binary.BigEndian.AppendUint32(out, stream), payload...)
}

// nodeWireAttacks are attacks on the connections between nodes and servers, and on other nodes' kubelet APIs.
func (w *world) nodeWireAttacks() []attack {
	const protocol = "balsa-node/1"
	greeted := func(as tls.Certificate, say []byte) func(context.Context) error {
		return func(context.Context) error {
			first, err := w.open(as, protocol, say)
			if err == nil && first != frameHello {
				err = fmt.Errorf("%w: the server says frame %d", errRefused, first)
			}
			return err
		}
	}
	well := greeted(w.evilPair, frame(framePong, 0, ""))
	kubelet := filepath.Join(w.serverDir, "tls", "apiserver-kubelet-client.pem")
	server, bad := tls.LoadX509KeyPair(kubelet, kubelet)
	ask := func(as *tls.Certificate, method, path string) func(context.Context) error {
		return func(ctx context.Context) error {
			if bad != nil {
				return bad
			}
			return w.kubelet(ctx, as, method, path)
		}
	}
	const pods, logs, exec = "/pods", "/containerLogs/" + namespace + "/theirs/a", "/exec/" + namespace + "/theirs/a?command=id&output=1"
	return []attack{
		{"connection as another node, by a certificate of its own", func(ctx context.Context) error {
			pair, err := w.forged()
			if err != nil {
				return fmt.Errorf("forge: %v", err)
			}
			return greeted(pair, nil)(ctx)
		}, well},
		{"connection of a node with the identity that reads Services", greeted(w.proxyPair, nil), well},
		{"a server's loopback through the connection", func(context.Context) error { return w.opensBackwards("127.0.0.1:6443") }, well},
		{"another node through the connection", func(context.Context) error { return w.opensBackwards(w.victimAddress + ":10250") }, well},
		{"pods at another kubelet", ask(&w.evilPair, http.MethodGet, pods), ask(&server, http.MethodGet, pods)},
		{"logs at another kubelet", ask(&w.evilPair, http.MethodGet, logs), ask(&server, http.MethodGet, logs)},
		{"exec at another kubelet", ask(&w.evilPair, http.MethodPost, exec), ask(&server, http.MethodPost, exec)},
		{"pods at another kubelet, without a certificate", ask(nil, http.MethodGet, pods), ask(&server, http.MethodGet, pods)},
		{"exec at another kubelet, with the identity that reads Services", ask(&w.proxyPair, http.MethodPost, exec), ask(&server, http.MethodPost, exec)},
	}
}

// opensBackwards asks the server to open a connection, which only servers may ask of nodes. It returns nil if the
// server did not refuse.
func (w *world) opensBackwards(target string) error {
	c, err := tls.Dial("tcp", w.server, w.tlsAs(w.evilPair, "balsa-node/1"))
	if err != nil {
		return fmt.Errorf("connect: %v", err)
	}
	defer c.Close()
	if _, err := c.Write(frame(frameOpen, 1, target)); err != nil {
		return fmt.Errorf("ask: %v", err)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	said, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // the server has kept the connection
	}
	if bytes.Contains(said, frame(4, 1, "")) {
		return nil // opened
	}
	return fmt.Errorf("%w: the server has ended the connection", errRefused)
}

// kubelet sends a request to the victim's kubelet API. Every answer except a refusal counts as a success.
func (w *world) kubelet(ctx context.Context, as *tls.Certificate, method, path string) error {
	config := &tls.Config{RootCAs: w.roots, ServerName: w.victim}
	if as != nil {
		config.Certificates = []tls.Certificate{*as}
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, "https://"+net.JoinHostPort(w.victimAddress, "10250")+path, nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask %s: %v", path, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized {
		return fmt.Errorf("%w: %s", errRefused, answer.Status)
	}
	return nil
}
