from django.db import models


class Order(models.Model):
    """What tasks change."""

    name = models.CharField(max_length=50)
