{{/* What the schema cannot say because it concerns several values. Fails with the value, the reason and the fix. */}}
{{- define "glossa.check" -}}
{{- $values := .Values -}}
{{- if not (contains "glossa" (include "glossa.fullname" .)) -}}
{{- fail (printf "fullnameOverride: must contain glossa, or the alerts do not find its job, got %q" (include "glossa.fullname" .)) -}}
{{- end -}}
{{- $server := $values.server -}}
{{- $held := add (mul $server.engines $server.maxRows (len $values.models)) $server.maxQueue -}}
{{- if and $server.engines (gt $held (int64 $server.maxRequests)) -}}
{{- fail (printf "server.maxRequests: must be at least %d, the rows of all models and maxQueue, got %d; with fewer calls a full server looks idle to autoscaling and alerts" $held (int $server.maxRequests)) -}}
{{- end -}}
{{- $volume := $values.modelVolume -}}
{{- if and (eq $volume.kind "persistentVolumeClaim") (not $volume.claimName) -}}
{{- fail "modelVolume.claimName: empty; name the claim with the bundles" -}}
{{- end -}}
{{- if and (eq $volume.kind "image") (not $volume.image.reference) -}}
{{- fail "modelVolume.image.reference: empty; name the OCI image with the bundles" -}}
{{- end -}}
{{- if and (eq $volume.kind "initContainer") (not $volume.initContainer.image) -}}
{{- fail "modelVolume.initContainer.image: empty; name the image that copies the bundles to /models" -}}
{{- end -}}
{{- if and $values.tls.enabled (not $values.tls.secretName) -}}
{{- fail "tls.secretName: empty; name a secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and $values.tls.clientCa.secretName (not $values.tls.enabled) -}}
{{- fail "tls.clientCa.secretName: needs tls.enabled; without TLS clients have no certificates" -}}
{{- end -}}
{{- if and $values.tokens.enabled (not $values.tokens.secretName) -}}
{{- fail "tokens.secretName: empty; name a secret with the lines of `glossa token`" -}}
{{- end -}}
{{- $health := $values.probes.service -}}
{{- if and (hasPrefix "inference." $health) (not (has "open-inference" $values.server.adaptors)) -}}
{{- fail (printf "probes.service: %s needs server.adaptors: [open-inference]" $health) -}}
{{- end -}}
{{- if and (hasPrefix "vllm." $health) (not (has "vllm" $values.server.adaptors)) -}}
{{- fail (printf "probes.service: %s needs server.adaptors: [vllm]" $health) -}}
{{- end -}}
{{- $scaling := $values.autoscaling -}}
{{- if and (ne $scaling.kind "none") (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas: %d is above autoscaling.maxReplicas, %d" (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}

{{/* Seconds that a pod may take to end: those before SIGTERM, the drain, and what a hanging engine may add to it (16 s). */}}
{{- define "glossa.gracePeriod" -}}
{{- $server := .Values.server -}}
{{- $drain := add (int64 .Values.preStopSleepSeconds) (int64 (ceil $server.drainDelaySeconds)) (int64 (ceil $server.drainTimeoutSeconds)) -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- add $drain 20 -}}
{{- else -}}
{{- $given := int64 .Values.terminationGracePeriodSeconds -}}
{{- if le $given $drain -}}
{{- fail (printf "terminationGracePeriodSeconds: must be above %d, the sum of preStopSleepSeconds, server.drainDelaySeconds and server.drainTimeoutSeconds, got %d" $drain $given) -}}
{{- end -}}
{{- $given -}}
{{- end -}}
{{- end -}}
