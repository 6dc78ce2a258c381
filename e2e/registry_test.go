package e2e

import (
	"io"
	"log"
	"net/http"
	"os"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
)

// carriedImage returns the hello image inside the binary.
func carriedImage(t *testing.T) v1.Image {
	t.Helper()
	tag, err := name.NewTag("docker.io/balsahq/hello:1")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("../node/runtime/assets/images/carried.tar.zst")
	if err != nil {
		t.Fatal(err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	plain, err := dec.DecodeAll(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/carried.tar"
	if err := os.WriteFile(path, plain, 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// serveRegistry runs a registry on the cluster's host; password may be empty.
func serveRegistry(c *cluster, address, user, password string) {
	c.t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, p, _ := r.BasicAuth()
		if password != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`, http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	})
	listener, err := c.Listen("tcp", address)
	if err != nil {
		c.t.Fatal(err)
	}
	server := &http.Server{Handler: guarded}
	go func() { _ = server.Serve(listener) }()
	c.t.Cleanup(func() { server.Close() })

	ref, err := name.ParseReference(address+"/app:1", name.Insecure)
	if err != nil {
		c.t.Fatal(err)
	}
	auth := &authn.Basic{Username: user, Password: password}
	if err := remote.Write(ref, carriedImage(c.t), remote.WithAuth(auth), remote.WithTransport(&http.Transport{DialContext: c.Dial})); err != nil {
		c.t.Fatal(err)
	}
}

func TestPullFromRegistry(t *testing.T) {
	c := start(t)
	serveRegistry(c, "127.0.0.1:5000", "", "")
	c.kubectl("run", "pulled", "--image=127.0.0.1:5000/app:1")
	c.kubectl("wait", "--for=condition=Ready", "pod/pulled", "--timeout=60s")
	c.eventually("the pull is told", c.wants("Successfully pulled image", "describe", "pod", "pulled"))
}

func TestPullWithSecret(t *testing.T) {
	c := start(t)
	serveRegistry(c, "127.0.0.1:5001", "somebody", "their password")
	c.kubectl("run", "stranger", "--image=127.0.0.1:5001/app:1")
	c.eventually("without a secret the pull is refused", c.wants("ErrImagePull", "describe", "pod", "stranger"))
	c.kubectl("create", "secret", "docker-registry", "pull", "--docker-server=127.0.0.1:5001", "--docker-username=somebody", "--docker-password=their password")
	c.kubectl("run", "friend", "--image=127.0.0.1:5001/app:1", "--image-pull-policy=Always", `--overrides={"spec":{"imagePullSecrets":[{"name":"pull"}]}}`)
	c.kubectl("wait", "--for=condition=Ready", "pod/friend", "--timeout=60s")
}
