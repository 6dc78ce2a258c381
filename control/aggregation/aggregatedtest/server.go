package aggregatedtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/component-base/compatibility"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// GroupVersion is the served one. Its objects are fishes, which look like ConfigMaps.
var GroupVersion = schema.GroupVersion{Group: "sea.example.com", Version: "v1"}

// Config configures a Server.
type Config struct {
	// Cluster is a client configuration whose user is bound to system:auth-delegator and to the Role
	// extension-apiserver-authentication-reader.
	Cluster *restclient.Config
	// Service is the name "service.namespace.svc" for which the certificate is made.
	Service string
	// Serves is the group and version of the fishes. Default: GroupVersion.
	Serves schema.GroupVersion
}

// Server is a running server.
type Server struct {
	// Port is on 127.0.0.1.
	Port int
	// CA is the PEM certificate of the server's CA.
	CA []byte
}

// Start runs a server until the test ends.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if cfg.Serves.Empty() {
		cfg.Serves = GroupVersion
	}
	scheme, codecs := newScheme(cfg.Serves)
	c := genericapiserver.NewRecommendedConfig(codecs)
	c.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.0", "", "")
	namer := apiopenapi.NewDefinitionNamer(scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no TCP address")
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey(cfg.Service, []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	must(err)
	dir := t.TempDir()
	must(os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600))
	must(os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	serving := genericoptions.NewSecureServingOptions().WithLoopback()
	serving.Listener, serving.BindPort = listener, addr.Port
	serving.ServerCert.CertKey = genericoptions.CertKey{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	must(serving.ApplyTo(&c.SecureServing, &c.LoopbackClientConfig))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must(writeKubeconfig(kubeconfig, cfg.Cluster))
	authentication, authorization := genericoptions.NewDelegatingAuthenticationOptions(), genericoptions.NewDelegatingAuthorizationOptions()
	authentication.RemoteKubeConfigFile, authorization.RemoteKubeConfigFile = kubeconfig, kubeconfig
	must(authentication.ApplyTo(&c.Authentication, c.SecureServing, c.OpenAPIConfig))
	must(authorization.ApplyTo(&c.Authorization))
	server, err := c.Complete().New("sea", genericapiserver.NewEmptyDelegate())
	must(err)
	info := genericapiserver.NewDefaultAPIGroupInfo(cfg.Serves.Group, scheme, metav1.ParameterCodec, codecs)
	info.VersionedResourcesStorageMap[cfg.Serves.Version] = map[string]rest.Storage{"fishes": newFishes()}
	must(server.InstallAPIGroup(&info))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.PrepareRun().RunWithContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &Server{Port: addr.Port, CA: certificate}
}

// Address returns the server's host:port.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// newScheme knows one kind, which is the same inside and outside.
func newScheme(serves schema.GroupVersion) (*runtime.Scheme, serializer.CodecFactory) {
	scheme := runtime.NewScheme()
	for _, gv := range []schema.GroupVersion{serves, {Group: serves.Group, Version: runtime.APIVersionInternal}} {
		scheme.AddKnownTypeWithName(gv.WithKind("Fish"), &corev1.ConfigMap{})
		scheme.AddKnownTypeWithName(gv.WithKind("FishList"), &corev1.ConfigMapList{})
	}
	metav1.AddToGroupVersion(scheme, serves)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme, serializer.NewCodecFactory(scheme)
}

func writeKubeconfig(path string, c *restclient.Config) error {
	out := clientcmdapi.NewConfig()
	out.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	out.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: c.BearerToken, ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}
	out.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	out.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*out, path); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}
