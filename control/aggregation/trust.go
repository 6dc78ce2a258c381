package aggregation

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
)

// trustName is the ConfigMap in kube-system from which aggregated servers learn which clients and proxies to trust
// (k8s.io/apiserver/pkg/server/options, RequestHeaderAuthenticationOptions).
const trustName = "extension-apiserver-authentication"

// clockSkew is the assumed difference between clocks in a cluster, for the validity of certificates; upstream's figure.
const clockSkew = 5 * time.Minute

// Back-off after a failed write of the ConfigMap.
const firstRetry, lastRetry = time.Second, time.Minute

// Trust is the content of the ConfigMap: the CAs and headers by which aggregated servers authenticate requests.
type Trust struct {
	// ClientCA returns the CA certificates of clients, PEM.
	ClientCA func() []byte
	// Retired returns CAs that no longer sign client certificates; they are removed from the ConfigMap. Changed returns
	// a channel that is closed when the result of Retired or ClientCA changes after the call. Both may be nil.
	Retired func() []*x509.Certificate
	Changed func() <-chan struct{}
	// ProxyCA is the CA certificate of the front proxy, PEM.
	ProxyCA []byte
	// ProxyNames are the common names of the front proxy. The other fields are the headers in which it names the user.
	ProxyNames, UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

// merge adds the trust to data, which another server may have written; existing entries stay.
func (t Trust) merge(data map[string]string) (map[string]string, error) {
	out := maps.Clone(data)
	if out == nil {
		out = map[string]string{}
	}
	var retired []*x509.Certificate
	if t.Retired != nil {
		retired = t.Retired()
	}
	out["client-ca-file"] = mergePEM(out["client-ca-file"], t.ClientCA(), retired...)
	out["requestheader-client-ca-file"] = mergePEM(out["requestheader-client-ca-file"], t.ProxyCA)
	for key, want := range map[string][]string{
		"requestheader-allowed-names": t.ProxyNames, "requestheader-username-headers": t.UserHeaders, "requestheader-uid-headers": t.UIDHeaders,
		"requestheader-group-headers": t.GroupHeaders, "requestheader-extra-headers-prefix": t.ExtraPrefixes,
	} {
		var have []string
		if text := out[key]; text != "" && json.Unmarshal([]byte(text), &have) != nil {
			have = nil // unreadable: replace it
		}
		for _, w := range want {
			if !slices.Contains(have, w) {
				have = append(have, w)
			}
		}
		text, err := json.Marshal(have)
		if err != nil {
			return nil, err
		}
		out[key] = string(text)
	}
	return out, nil
}

// mergePEM adds missing certificates and drops retired and expired ones.
func mergePEM(have string, more []byte, retired ...*x509.Certificate) string {
	var all [][]byte
	var out bytes.Buffer
	for _, data := range [][]byte{[]byte(have), more} {
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil || time.Since(cert.NotAfter) > clockSkew || slices.ContainsFunc(retired, cert.Equal) {
				continue
			}
			if !slices.ContainsFunc(all, func(b []byte) bool { return bytes.Equal(b, block.Bytes) }) {
				all = append(all, block.Bytes)
				_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // writes to memory
			}
		}
	}
	return out.String()
}

// Keep writes the ConfigMap, and restores it when it is changed or deleted, until ctx ends.
func (t Trust) Keep(ctx context.Context, client kubernetes.Interface, log *slog.Logger) error {
	changed := make(chan struct{}, 1)
	look := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	informer := coreinformers.NewFilteredConfigMapInformer(client, metav1.NamespaceSystem, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, trustName).String()
	})
	if _, err := informer.AddEventHandler(eventhandler.Contain("control/aggregation", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { look() }, UpdateFunc: func(_, _ any) { look() }, DeleteFunc: func(any) { look() },
	})); err != nil {
		return fmt.Errorf("aggregation: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fault.KeepDo(ctx, "control/aggregation", informer.RunWithContext)
	}()
	look()
	for wait := firstRetry; ; {
		var rotated <-chan struct{}
		if t.Changed != nil {
			rotated = t.Changed() // before ensure looks
		}
		select {
		case <-ctx.Done():
			<-done
			return nil
		case <-changed:
		case <-rotated:
		}
		if err := fault.Contain("control/aggregation", func() error { return t.ensure(ctx, client) }); err != nil && ctx.Err() == nil {
			log.Warn("cannot write the ConfigMap by which aggregated servers authenticate requests; it is tried again", "configmap", trustName, "err", err, "again_in", wait)
			time.AfterFunc(wait, look)
			wait = min(2*wait, lastRetry)
			continue
		}
		wait = firstRetry
	}
}

// ensure writes the ConfigMap if something in it is missing.
func (t Trust) ensure(ctx context.Context, client kubernetes.Interface) error {
	objects := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	have, err := objects.Get(ctx, trustName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		have, err = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: trustName, Namespace: metav1.NamespaceSystem}}, nil
	}
	if err != nil {
		return err
	}
	want := have.DeepCopy()
	if want.Data, err = t.merge(have.Data); err != nil {
		return err
	}
	switch {
	case missing:
		_, err = objects.Create(ctx, want, metav1.CreateOptions{})
	case !maps.Equal(have.Data, want.Data):
		_, err = objects.Update(ctx, want, metav1.UpdateOptions{})
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return nil // another server wrote it; the informer will report that
	}
	return err
}
