package controller

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	webv1 "example.com/site-operator/api/v1"
)

// enter puts the Site's line into the directory.
func (r *SiteReconciler) enter(ctx context.Context, site *webv1.Site) error {
	err := r.line(ctx, site.Spec.Host, site.Namespace+"/"+site.Name)
	if !apierrors.IsNotFound(err) {
		return err
	}
	if err := r.Create(ctx, r.directory()); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return r.line(ctx, site.Spec.Host, site.Namespace+"/"+site.Name)
}

// leave takes the line out; a directory that is gone has no lines.
func (r *SiteReconciler) leave(ctx context.Context, site *webv1.Site) error {
	return client.IgnoreNotFound(r.line(ctx, site.Spec.Host, nil))
}

// line sets one key by a merge patch, which touches no other Site's; nil removes it.
func (r *SiteReconciler) line(ctx context.Context, host string, value any) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]any{host: value}})
	if err != nil {
		return err
	}
	return r.Patch(ctx, r.directory(), client.RawPatch(types.MergePatchType, patch))
}
