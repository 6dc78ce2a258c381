package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

type options struct {
	agentDir, serverDir, server, address, victim, victimAddress, san string
}

// world holds the clients and objects that the attacks use.
type world struct {
	options
	node                string // of this node
	clusterID           string
	agentKeys           [][]byte // gossip keys in the agent's files
	roots               *x509.CertPool
	evil, proxy, admin  *kubernetes.Clientset
	evilPair, proxyPair tls.Certificate
	adminPair           tls.Certificate
	own, theirs         *v1.Pod // on this node, on the victim
}

// namespace holds the objects under attack.
const namespace = "hostile"

func newWorld(ctx context.Context, o options) (*world, error) {
	w := &world{options: o, roots: x509.NewCertPool()}
	ca, err := os.ReadFile(filepath.Join(o.agentDir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	w.roots.AppendCertsFromPEM(ca)
	if w.node, w.clusterID, w.agentKeys, err = memberOf(o.agentDir); err != nil {
		return nil, err
	}
	for _, id := range []struct {
		file   string
		pair   *tls.Certificate
		client **kubernetes.Clientset
	}{
		{filepath.Join(o.agentDir, "node-client.pem"), &w.evilPair, &w.evil},
		{filepath.Join(o.agentDir, "node-services.pem"), &w.proxyPair, &w.proxy},
		{filepath.Join(o.serverDir, "tls", "admin.pem"), &w.adminPair, &w.admin},
	} {
		if *id.pair, err = tls.LoadX509KeyPair(id.file, id.file); err != nil {
			return nil, err
		}
		*id.client, err = kubernetes.NewForConfig(&rest.Config{Host: "https://" + o.server, QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertFile: id.file, KeyFile: id.file}})
		if err != nil {
			return nil, err
		}
	}
	return w, w.furnish(ctx)
}

// memberOf reads a member's files about its cluster.
func memberOf(dir string) (name, clusterID string, keys [][]byte, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "member.json"))
	if err != nil {
		return "", "", nil, err
	}
	var m struct {
		Name, ClusterID string
		GossipKeys      [][]byte
	}
	err = json.Unmarshal(raw, &m)
	return m.Name, m.ClusterID, m.GossipKeys, err
}

// furnish creates a pod on this node and one on the victim, each with a secret, a config map and a service account, and
// waits until both run.
func (w *world) furnish(ctx context.Context) error {
	_, err := w.admin.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for name, node := range map[string]string{"own": w.node, "theirs": w.victim} {
		meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
		if _, err := w.admin.CoreV1().Secrets(namespace).Create(ctx, &v1.Secret{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := w.admin.CoreV1().ConfigMaps(namespace).Create(ctx, &v1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := w.admin.CoreV1().ServiceAccounts(namespace).Create(ctx, &v1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		pod := &v1.Pod{ObjectMeta: meta, Spec: v1.PodSpec{
			NodeName: node, ServiceAccountName: name, TerminationGracePeriodSeconds: new(int64),
			Containers: []v1.Container{{Name: "a", Image: "balsahq/hello:1"}},
			Volumes: []v1.Volume{
				{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}}},
				{Name: "map", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}}},
			},
		}}
		if _, err := w.admin.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	pending := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pending", Namespace: namespace},
		Spec: v1.PodSpec{SchedulerName: "nobody", Containers: []v1.Container{{Name: "a", Image: "balsahq/hello:1"}}}}
	if _, err := w.admin.CoreV1().Pods(namespace).Create(ctx, pending, metav1.CreateOptions{}); err != nil {
		return err
	}
	if w.own, err = w.running(ctx, "own"); err != nil {
		return err
	}
	w.theirs, err = w.running(ctx, "theirs")
	return err
}

func (w *world) running(ctx context.Context, name string) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		pod, err := w.admin.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase == v1.PodRunning {
			return pod, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("pod %s does not run: %w", name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tlsAs returns a client configuration with a certificate.
func (w *world) tlsAs(pair tls.Certificate, protocols ...string) *tls.Config {
	host, _, _ := net.SplitHostPort(w.server)
	return &tls.Config{RootCAs: w.roots, ServerName: host, NextProtos: protocols,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }}
}

// grpcAs returns a connection for calls whose messages are bytes.
func (w *world) grpcAs(pair tls.Certificate) (*grpc.ClientConn, error) {
	return grpc.NewClient(w.server, grpc.WithTransportCredentials(credentials.NewTLS(w.tlsAs(pair))),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
}

// newKey returns a key and a certificate request for it.
func newKey(template x509.CertificateRequest) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
}

func nodeNamed(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}
