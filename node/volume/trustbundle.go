package volume

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"sort"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// trustBundle returns the certificates of the ClusterTrustBundles that a projection names, each once, sorted.
func (m *Manager) trustBundle(ctx context.Context, p *v1.ClusterTrustBundleProjection) ([]byte, error) {
	api := m.cfg.Client.CertificatesV1beta1().ClusterTrustBundles()
	var texts []string
	switch {
	case p.Name != nil:
		b, err := api.Get(ctx, *p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && isTrue(p.Optional) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cluster trust bundle %s: %w", *p.Name, err)
		}
		texts = append(texts, b.Spec.TrustBundle)
	case p.SignerName != nil:
		selector, err := metav1.LabelSelectorAsSelector(p.LabelSelector)
		if err != nil {
			return nil, err
		}
		list, err := api.List(ctx, metav1.ListOptions{
			LabelSelector: selector.String(),
			FieldSelector: fields.OneTermEqualSelector("spec.signerName", *p.SignerName).String(),
		})
		if err != nil {
			return nil, fmt.Errorf("cluster trust bundles of %s: %w", *p.SignerName, err)
		}
		for i := range list.Items {
			texts = append(texts, list.Items[i].Spec.TrustBundle)
		}
	default:
		return nil, errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	out := mergeCertificates(texts)
	if len(out) == 0 && !isTrue(p.Optional) {
		return nil, errors.New("combined trust bundle is empty")
	}
	return out, nil
}

func mergeCertificates(texts []string) []byte {
	seen := map[string]bool{}
	var all []string
	for _, text := range texts {
		rest := []byte(text)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if der := string(block.Bytes); block.Type == "CERTIFICATE" && !seen[der] {
				seen[der] = true
				all = append(all, der)
			}
		}
	}
	sort.Strings(all)
	var out bytes.Buffer
	for _, der := range all {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)}) // a Buffer does not fail
	}
	return out.Bytes()
}
