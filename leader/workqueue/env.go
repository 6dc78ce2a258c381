package workqueue

import (
	"context"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// Env is what a term lends to one controller. Client and Rest act as the controller's own service account, and every
// write made with them is refused once the term is over. Informers are shared by the whole term; a controller asks for
// the ones it needs in its constructor and never starts them.
type Env struct {
	Name      string
	Client    kubernetes.Interface
	Reader    kubernetes.Interface // may list and watch everything; for informers of one controller's own
	Rest      *rest.Config         // for clients of other kinds: metadata, discovery, scale
	Informers informers.SharedInformerFactory
	Events    record.EventRecorder
	Log       *slog.Logger
}

// Runner is a controller: Run blocks until ctx ends and joins every goroutine it started.
type Runner interface {
	Run(ctx context.Context) error
}

// Key names an object; Namespace is empty for what has none.
type Key = types.NamespacedName

// KeyOf is the key of an object.
func KeyOf(o metav1.Object) Key {
	return Key{Namespace: o.GetNamespace(), Name: o.GetName()}
}
