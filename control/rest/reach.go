package rest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/kubelet/client"
)

// reach knows how to talk to nodes and pods.
type reach struct {
	nodes    rest.Getter
	kubelets *http.Transport // verifies the kubelet against the cluster CA and shows the API server's certificate
	careless *http.Transport // the same without verifying, for logs whose reader asked for that
	pods     *http.Transport // plain proxying to pods and services; their certificates are nobody's to judge
}

var _ client.ConnectionInfoGetter = (*reach)(nil)

// addressOrder: which of a Node's addresses is dialled.
var addressOrder = []api.NodeAddressType{api.NodeInternalIP, api.NodeExternalIP, api.NodeInternalDNS, api.NodeExternalDNS, api.NodeHostName}

const defaultKubeletPort = 10250

func newReach(nodes rest.Getter, cfg Config) *reach {
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	transport := func(c *tls.Config) *http.Transport {
		return &http.Transport{DialContext: dial, TLSClientConfig: c, TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second}
	}
	return &reach{
		nodes:    nodes,
		kubelets: transport(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.ClusterCA, GetClientCertificate: cfg.KubeletClient}),
		careless: transport(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, GetClientCertificate: cfg.KubeletClient}),
		pods:     transport(&tls.Config{InsecureSkipVerify: true}),
	}
}

// GetConnectionInfo implements client.ConnectionInfoGetter from the Node's status.
func (r *reach) GetConnectionInfo(ctx context.Context, name types.NodeName) (*client.ConnectionInfo, error) {
	if r.nodes == nil {
		return nil, apierrors.NewServiceUnavailable("this server does not know nodes")
	}
	obj, err := r.nodes.Get(ctx, string(name), &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	node, ok := obj.(*api.Node)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T is not a Node", obj))
	}
	host, err := nodeHost(node)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = defaultKubeletPort
	}
	return &client.ConnectionInfo{Scheme: "https", Hostname: host, Port: strconv.Itoa(port),
		Transport: r.kubelets, InsecureSkipTLSVerifyTransport: r.careless, NodeFeatures: node.Status.DeclaredFeatures}, nil
}

func nodeHost(node *api.Node) (string, error) {
	for _, t := range addressOrder {
		for _, a := range node.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return a.Address, nil
			}
		}
	}
	return "", fmt.Errorf("node %s has no address yet; its agent reports one when it runs", node.Name)
}
