package control

import (
	"context"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/balsahq/balsa/control/legacy/presets"
)

// definedFor is the annotation of definitions that servers write: the version of Kubernetes their schema is of.
const definedFor = "balsa.dev/kubernetes-version"

// servedWithin is how long a new definition is waited for before the server is ready without it.
const servedWithin = 5 * time.Second

// definePresets writes the definition of PodPresets where they are asked for.
func (s *Server) definePresets(ctx context.Context) error {
	if !s.cfg.PodPresets {
		return nil
	}
	return s.applyDefinition(ctx, presets.DefinitionName, presets.Definition)
}

// applyDefinition writes a definition where it is missing or of another version, and waits until its kind is served.
func (s *Server) applyDefinition(ctx context.Context, name string, definition func() (*apiextensionsv1.CustomResourceDefinition, error)) error {
	client, err := extensionsclient.NewForConfig(s.Client(Identity{User: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}))
	if err != nil {
		return err
	}
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	have, err := crds.Get(ctx, name, metav1.GetOptions{})
	if err == nil && have.Annotations[definedFor] == KubernetesVersion {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	want, failed := definition()
	if failed != nil {
		return failed
	}
	want.Annotations[definedFor] = KubernetesVersion
	if err == nil {
		want.ResourceVersion = have.ResourceVersion
		_, err = crds.Update(ctx, want, metav1.UpdateOptions{})
		return err
	}
	if _, err = crds.Create(ctx, want, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, servedWithin)
	defer cancel()
	waitFor(patient, func() bool {
		return slices.ContainsFunc(s.definitions(), func(d *apiextensionsv1.CustomResourceDefinition) bool { return d.Name == name })
	})
	return nil
}
