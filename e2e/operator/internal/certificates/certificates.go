// Package certificates gives the webhook server a certificate of its own making
// and tells the API server to trust it, for clusters without a certificate
// manager. All replicas share what is in one Secret.
package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Config names what takes part.
type Config struct {
	Namespace, Secret, Service         string
	MutatingWebhook, ValidatingWebhook string
	Definition                         string // the CustomResourceDefinition with a conversion webhook
	Dir                                string // where the webhook server looks for tls.crt and tls.key
}

const validFor = 10 * 365 * 24 * time.Hour

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,verbs=get;patch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get;patch
// +kubebuilder:rbac:groups="",namespace=system,resources=secrets,verbs=get;create

// Ensure makes the Secret if nobody has yet, writes the files, and writes the
// CA into the webhooks' configurations.
func Ensure(ctx context.Context, c client.Client, cfg Config) error {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: cfg.Namespace, Name: cfg.Secret}
	err := c.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		if secret, err = generate(cfg); err != nil {
			return err
		}
		if err = c.Create(ctx, secret); apierrors.IsAlreadyExists(err) {
			err = c.Get(ctx, key, secret) // another replica was first
		}
	}
	if err != nil {
		return fmt.Errorf("secret %s: %w", key, err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if err := os.WriteFile(filepath.Join(cfg.Dir, name), secret.Data[name], 0o600); err != nil {
			return err
		}
	}
	return trust(ctx, c, cfg, secret.Data["ca.crt"])
}

// trust writes the CA where the API server looks for it.
func trust(ctx context.Context, c client.Client, cfg Config, ca []byte) error {
	var mutating admissionv1.MutatingWebhookConfiguration
	if err := c.Get(ctx, client.ObjectKey{Name: cfg.MutatingWebhook}, &mutating); err != nil {
		return err
	}
	before := mutating.DeepCopy()
	for i := range mutating.Webhooks {
		mutating.Webhooks[i].ClientConfig.CABundle = ca
	}
	if err := c.Patch(ctx, &mutating, client.StrategicMergeFrom(before)); err != nil {
		return err
	}
	var validating admissionv1.ValidatingWebhookConfiguration
	if err := c.Get(ctx, client.ObjectKey{Name: cfg.ValidatingWebhook}, &validating); err != nil {
		return err
	}
	was := validating.DeepCopy()
	for i := range validating.Webhooks {
		validating.Webhooks[i].ClientConfig.CABundle = ca
	}
	if err := c.Patch(ctx, &validating, client.StrategicMergeFrom(was)); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"conversion": map[string]any{
		"webhook": map[string]any{"clientConfig": map[string]any{"caBundle": ca}},
	}}})
	if err != nil {
		return err
	}
	definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: cfg.Definition}}
	return c.Patch(ctx, definition, client.RawPatch(types.MergePatchType, patch))
}

// generate makes a CA, and a certificate of it for the Service's names.
func generate(cfg Config) (*corev1.Secret, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	name := cfg.Service + "." + cfg.Namespace + ".svc"
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cfg.Service + "-ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validFor),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		DNSNames:  []string{name, name + ".cluster.local"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Secret},
		Type:       corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"ca.crt":                pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}),
			corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leafDER}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
		},
	}, nil
}
